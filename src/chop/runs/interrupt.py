"""Interruption of a job by hand: says what is kept, and how to resume."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chop.errors import ConfigError
from chop.files.reading import read_bytes


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
