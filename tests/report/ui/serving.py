"""A server of `chop ui` in a thread, and what it answers."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from email.message import Message
from pathlib import Path
from typing import NamedTuple

import uvicorn

from chop.report.ui import server

SECRET = "a-token-of-the-tests"


class Answer(NamedTuple):
    status: int
    text: str
    headers: Message


class Asked:
    """Asks a server on a free port, with its cookie unless other headers are given."""

    def __init__(self, port: int) -> None:
        self.port = port

    def __call__(self, path: str, **headers: str) -> tuple[int, str]:
        return self.whole(path, **headers)[:2]

    def headers(self, path: str) -> Message:
        return self.whole(path).headers

    def whole(self, path: str, **headers: str) -> Answer:
        return self.as_stranger(path, **{"Cookie": f"chop-ui-{self.port}={SECRET}", **headers})

    def as_stranger(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """Without the cookie."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as line:
            line.request(method, path, headers={k.replace("_", "-"): x for k, x in headers.items()})
            answer = line.getresponse()
            return Answer(answer.status, answer.read().decode(), answer.headers)


@contextmanager
def serving(root: Path) -> Iterator[Asked]:
    listener = server._listener(0)
    application = server.application(root, SECRET)
    running = uvicorn.Server(uvicorn.Config(application, log_level="warning"))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    while not running.started:
        time.sleep(0.01)
    try:
        yield Asked(listener.getsockname()[1])
    finally:
        running.should_exit = True
        thread.join()
        listener.close()
