"""Web server of `chop ui` on the loopback address: run list, pages and progress."""

from __future__ import annotations

import re
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.base.installed import require
from chop.errors import ConfigError
from chop.report.charts.chart import chart_in_words
from chop.report.document import PageTable, page_table
from chop.report.page.page import environment, picture
from chop.report.report import Table, say
from chop.report.ui.access import TOKEN, TokenRequired, new_token
from chop.report.ui.browser import opened
from chop.report.ui.cells import ListCell, list_cells
from chop.report.ui.compare import compare
from chop.report.ui.folder import RunsFolder
from chop.report.ui.run_entry import RunEntry

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from uvicorn import Server

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
"""Accepted host names; requests by other names, as in DNS rebinding, are rejected."""
MAX_PARTS = 4
FINGERPRINT = re.compile("[0-9a-f]{16}")
NOTHING = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
PAGE_POLICY = f"{NOTHING}; script-src 'unsafe-inline'; sandbox allow-scripts"
"""Content security policy of pages in the folder, which are not trusted.

A sandbox without an origin keeps them, and windows they open, from requests to the server.
"""
OWN_POLICY = NOTHING + "; connect-src 'self'; script-src 'nonce-{nonce}'"
"""Content security policy of the server's own pages, which only run their own scripts."""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"{NOTHING}; sandbox",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of all responses except fixed error texts."""
OPENER_POLICY = {"Cross-Origin-Opener-Policy": "same-origin"}
"""Headers of the server's own pages. Sandboxed pages must not have them by the HTML standard."""


def serve(folder: Path, port: int, open_browser: bool) -> None:
    """Serves until stopped and prints the address with the token.

    Args:
        folder: folder that contains the runs.
        port: port on the loopback address. 0 selects a free port.
        open_browser: opens the list in a browser.
    Raises:
        ConfigError: if the folder does not exist, or the port is in use.
        UnavailableError: if starlette or uvicorn is not installed.
    """
    if not folder.is_dir():
        raise ConfigError(
            f"'{folder}' is not a folder: expected a folder that contains run folders of chop."
        )
    require("chop ui", "starlette", "uvicorn", extra="ui")
    import uvicorn

    listener = _listener(port)
    token = new_token()
    url = f"http://{HOST}:{listener.getsockname()[1]}/?{TOKEN}={token}"
    config = uvicorn.Config(application(folder, token), log_level="critical", access_log=False)
    with listener, opened(url) if open_browser else nullcontext():
        say(f"{folder}: {url} until Ctrl-C", is_whole=True)
        _run(uvicorn.Server(config), listener)


def _run(server: Server, listener: socket.socket) -> None:
    """Runs the server until a signal; requests in progress do not delay the end."""
    # Request threads are daemons like their parent thread, so nothing waits for them.
    arguments = {"sockets": [listener]}
    thread = threading.Thread(target=server.run, kwargs=arguments, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(1)
    finally:
        server.should_exit = server.force_exit = True
        thread.join(0.3)


def _listener(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or "expected 0 to 65535"
        raise ConfigError(f"port {port}: {reason}; --port 0 selects a free port.") from None
    return listener


def application(folder: Path, token: str) -> Starlette:
    """Returns the application with `/`, `/runs`, `/run/PATH`, `/progress/PATH` and `/compare`.

    Args:
        folder: folder that contains the runs. Files outside are not served.
        token: token that requests need, see `TokenRequired`.
    """
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import HTMLResponse, JSONResponse
    from starlette.routing import Route

    runs = RunsFolder(folder)

    def html(name: str, status: int = 200, **values: Any) -> Response:
        nonce = secrets.token_urlsafe()
        policy = {"Content-Security-Policy": OWN_POLICY.format(nonce=nonce), **OPENER_POLICY}
        return HTMLResponse(_render(name, nonce=nonce, **values), status, {**HEADERS, **policy})

    def listed(request: Request) -> Response:
        entries = runs.runs()
        counts = Counter(run.state for run in entries)
        return html("list.html.jinja", folder=str(runs.root), rows=_rows(entries), counts=counts)

    def rows(request: Request) -> Response:
        entries = runs.runs()
        text = _render("rows.html.jinja", rows=_rows(entries))
        counts = _render("counts.html.jinja", counts=Counter(run.state for run in entries))
        return JSONResponse({"html": text, "counts": counts}, 200, HEADERS)

    def page(request: Request) -> Response:
        run = runs.run(request.path_params["path"])
        if run is None:
            return html("missing.html.jinja", 404)
        text = runs.page(run) if run.state != "running" else None
        if text is not None:
            return HTMLResponse(text, 200, {**HEADERS, "Content-Security-Policy": PAGE_POLICY})
        return html("live.html.jinja", run=run, progress=_progress(runs, run.path))

    def progress(request: Request) -> Response:
        run = runs.run(request.path_params["path"])
        if run is None:
            return JSONResponse({}, 404, HEADERS)
        state = {"html": _progress(runs, run.path), "state": run.state}
        return JSONResponse(state, 200, HEADERS)

    def compared(request: Request) -> Response:
        comparison = compare(runs, request.query_params.getlist("run"))
        if comparison is None:
            return html("missing.html.jinja", 404)
        return html("compare.html.jinja", comparison=comparison)

    routes = [
        Route("/", listed),
        Route("/runs", rows),
        Route("/run/{path:path}", page),
        Route("/progress/{path:path}", progress),
        Route("/compare", compared),
    ]
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=list(NAMES), www_redirect=False)
    tokens = Middleware(TokenRequired, token=token, headers=HEADERS, policy=NOTHING)
    return Starlette(routes=routes, middleware=[hosts, tokens])


def _progress(runs: RunsFolder, path: str) -> str:
    progress = runs.progress(path)
    if progress is None:
        return ""
    return _render(
        "progress.html.jinja",
        progress=progress,
        points=_points_table(progress.points),
        pictures=[picture(chart_in_words(chart)) for chart in progress.charts],
    )


def _rows(runs: Sequence[RunEntry]) -> list[tuple[RunEntry, list[ListCell]]]:
    """Returns the runs with their cells, all for the same time."""
    now = datetime.now(UTC)
    return [(run, list_cells(run, now)) for run in runs]


def _points_table(points: Sequence[Mapping[str, Any]]) -> PageTable:
    """Returns journal points as a table, latest first, without constant settings."""
    rows = [{name: _cell(value) for name, value in point.items()} for point in reversed(points)]
    names = []
    for name in dict.fromkeys(name for row in rows for name in row):
        values = {row.get(name) for row in rows}
        differs = values != {None} and (len(values) > 1 or len(rows) == 1)
        if differs or any(isinstance(value, float) for value in values):
            names.append(name)
    return page_table(Table("", [{name: row.get(name) for name in names} for row in rows]))


def _cell(value: Any) -> float | int | str | None:
    """Formats a short value of a point, such as a format [8, 4]; long values become ""."""
    if isinstance(value, list) and len(value) <= MAX_PARTS:
        return ", ".join(map(str, value))
    is_short = isinstance(value, int | float | str) and not FINGERPRINT.fullmatch(str(value))
    return value if is_short else None


def _render(name: str, **values: Any) -> str:
    templates = environment(Path(__file__).parent / "templates")
    text: str = templates.get_template(name).render(**values)
    return text
