"""Access control of the server: a token in its address, exchanged for a cookie."""

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
REFUSAL = "This server needs the token of the address that chop ui has printed: open that address."
LEADS_ON = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={}">'


def new_token() -> str:
    """Returns a new random token."""
    return secrets.token_urlsafe(32)


def page_to(address: str) -> str:
    """Returns a page that redirects to an address at once."""
    return LEADS_ON.format(html.escape(address))


class TokenRequired:
    """Middleware that requires the token or its cookie.

    A port of the loopback address is open to every user and every program of the machine, so the
    mode of a folder protects nothing that a server shows of it. A request with the token in its
    address gets the cookie, and is sent to the same address without the token, which then is
    neither in the history of the browser nor in what pages can read.

    Args:
        app: app to protect.
        token: token of this server.
        headers: headers of the answers that are given here.
        policy: the content policy of the page that leads on.
    """

    def __init__(self, app: ASGIApp, token: str, headers: Mapping[str, str], policy: str) -> None:
        self.app, self.token, self.headers, self.policy = app, token, headers, policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or hands it on."""
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
        """An answer with the cookie that leads to the same address without the token."""
        from starlette.responses import HTMLResponse, RedirectResponse, Response

        others = [(k, v) for k, v in asking.query_params.multi_items() if k != TOKEN]
        # A path that begins with two slashes would be another server.
        path = "/" + quote(asking.scope["path"].lstrip("/"))
        address = f"{path}?{urlencode(others)}" if others else path
        answer: Response
        if asking.headers.get("sec-fetch-site") == "cross-site":
            # From a file or another site, browsers send no strict cookie along a redirection.
            headers = {**self.headers, "Content-Security-Policy": self.policy}
            answer = HTMLResponse(page_to(address), 200, headers)
        else:
            answer = RedirectResponse(address, 303, self.headers)
        answer.set_cookie(_cookie(asking.scope), self.token, httponly=True, samesite="strict")
        return answer


def _cookie(scope: Mapping[str, Any]) -> str:
    """Its name. Browsers share cookies between the ports of a host."""
    _, port = scope.get("server") or ("", "")
    return f"chop-ui-{port}"
