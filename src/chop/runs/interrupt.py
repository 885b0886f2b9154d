"""Interruption of a job by Ctrl-C or SIGTERM, with a message on saved results and how to resume."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chop.base.files.reading import read_bytes
from chop.errors import ConfigError


class Terminated(KeyboardInterrupt):
    """Raised when SIGTERM ends a job, as Ctrl-C would."""


@contextmanager
def terminable() -> Iterator[None]:
    """Context in which SIGTERM raises `Terminated`. A second SIGTERM ends the process at once.

    Forked processes end at once. Where SIGTERM is ignored, or somebody else handles it, it stays
    so, and processes of torchrun end at once, too: it ends them where one of them fails.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if (
        not is_main
        or "RANK" in os.environ
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return
    process = os.getpid()

    def terminate(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() != process:
            os.kill(os.getpid(), signal.SIGTERM)
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def with_interruption_note(sentence: Callable[[], str]) -> Iterator[None]:
    """Inside, a `KeyboardInterrupt` gets a note, which the command prints and Python shows.

    Args:
        sentence: says what is kept and how to go on; it is called when that happens.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        error.add_note(sentence())
        raise


def points_are_kept(path: Path) -> str:
    """Of a job that notes each point in a journal."""
    count = 0
    with suppress(OSError, ConfigError):
        count = read_bytes(path, "journal").count(b"\n")
    return f"{count} finished points are kept in {path}; the same command goes on from there."
