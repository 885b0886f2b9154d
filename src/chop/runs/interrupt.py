"""Interruption of a job by Ctrl-C or SIGTERM, with a note on saved results and resuming."""

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
    """Raised when SIGTERM ends a job, like Ctrl-C."""


@contextmanager
def terminable() -> Iterator[None]:
    """Context manager in which SIGTERM raises `Terminated`; a second SIGTERM ends at once.

    Forked processes end at once. An ignored or customized SIGTERM handler stays in place. Processes
    of torchrun also end at once, because torchrun terminates all of them if one fails.
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
    """Context manager that adds a note to `KeyboardInterrupt`, for the command and Python.

    Args:
        sentence: returns the note on saved results and how to resume, called on an interrupt.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        error.add_note(sentence())
        raise


def describe_saved_points(path: Path) -> str:
    """Returns the interruption note of a job with a journal."""
    count = 0
    with suppress(OSError, ConfigError):
        count = read_bytes(path, "journal").count(b"\n")
    return f"{count} finished points are saved in {path}. The same command resumes from there."
