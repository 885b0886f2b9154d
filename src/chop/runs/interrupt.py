"""Interruption of a job by hand: says what is kept, and how to resume."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


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
    count = path.read_bytes().count(b"\n") if path.is_file() else 0
    return f"{count} finished points are kept in {path}; the same command goes on from there."
