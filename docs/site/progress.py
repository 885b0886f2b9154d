"""Progress of building the site: finished steps, expected minutes and elapsed time."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable

OnLine = Callable[[str], None]
"""Callback that receives one line of progress."""


class Progress:
    """Prints one line for each step, with the time since the start.

    Args:
        on_line: receives each line. Default: prints it to standard output.
    """

    def __init__(self, on_line: OnLine | None = None) -> None:
        self._on_line = on_line or _write
        self._start = time.monotonic()

    def announce(self, what: str, seconds: float) -> None:
        """Prints the task and about how many minutes it takes."""
        self._on_line(f"building {what}: about {minutes(seconds)} on two idle cores")

    def step(self, text: str) -> None:
        """Prints a step that has ended or begins."""
        passed = time.monotonic() - self._start
        self._on_line(f"[{passed // 60:.0f}:{passed % 60:02.0f}] {text}")


def minutes(seconds: float) -> str:
    """Formats a time in whole minutes, rounded up.

    >>> minutes(20), minutes(61)
    ('1 minute', '2 minutes')
    """
    count = max(1, math.ceil(seconds / 60))
    return f"{count} minute{'s' * (count != 1)}"


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
