"""Access control of the server by a token in the URL, exchanged for a cookie."""

from __future__ import annotations

import html
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection
    from starlette.types import ASGIApp, Receive, Scope, Send

TOKEN = "token"
REFUSAL = (
    "Access denied: open the full address that chop ui printed, which contains the access token."
)
LEADS_ON = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={}">'


def new_token() -> str:
    """Returns a new random token."""
    return secrets.token_urlsafe(32)


def page_to(address: str) -> str:
    """Returns a page that redirects to an address."""
    return LEADS_ON.format(html.escape(address))


class TokenRequired:
    """Middleware that requires the token or its cookie.

    Every user and program of a machine can reach a port on the loopback address, so folder
    permissions do not protect what a server shows. A request with the token in its URL gets a
    cookie and a redirect to the same URL without the token. The token then is neither in the
    browser history nor visible to pages.

    Args:
        app: application to protect.
        token: token of this server.
        headers: headers of the responses sent here.
        policy: content security policy of the redirect page.
    """

    def __init__(self, app: ASGIApp, token: str, headers: Mapping[str, str], policy: str) -> None:
        self.app, self.token, self.headers, self.policy = app, token, headers, policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Responds to a request, or passes it on to the application."""
        from starlette.requests import HTTPConnection
        from starlette.responses import PlainTextResponse
        from starlette.websockets import WebSocketClose

        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        asking = HTTPConnection(scope)
        has_token = any(map(self._is_token, asking.query_params.getlist(TOKEN)))
        if scope["type"] == "http" and has_token:
            await self._led_on(asking)(scope, receive, send)
        elif has_token or self._is_token(asking.cookies.get(_cookie(scope), "")):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await PlainTextResponse(REFUSAL, 403, self.headers)(scope, receive, send)
        else:
            await WebSocketClose(1008, REFUSAL)(scope, receive, send)

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(errors="replace"), self.token.encode())

    def _led_on(self, asking: HTTPConnection) -> ASGIApp:
        """Returns a response that sets the cookie and redirects to the URL without the token."""
        from starlette.responses import HTMLResponse, RedirectResponse, Response

        others = [(k, v) for k, v in asking.query_params.multi_items() if k != TOKEN]
        # A path with two leading slashes would redirect to another server.
        path = "/" + quote(asking.scope["path"].lstrip("/"))
        address = f"{path}?{urlencode(others)}" if others else path
        answer: Response
        if asking.headers.get("sec-fetch-site") == "cross-site":
            # Browsers omit strict cookies in a redirection that starts at a file or another site.
            headers = {**self.headers, "Content-Security-Policy": self.policy}
            answer = HTMLResponse(page_to(address), 200, headers)
        else:
            answer = RedirectResponse(address, 303, self.headers)
        answer.set_cookie(_cookie(asking.scope), self.token, httponly=True, samesite="strict")
        return answer


def _cookie(scope: Mapping[str, Any]) -> str:
    """Returns the cookie name, with the port, because browsers share cookies between ports."""
    _, port = scope.get("server") or ("", "")
    return f"chop-ui-{port}"
