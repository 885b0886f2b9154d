"""Progress of making the site: what is done, what it will take, and how long it took."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable

Tell = Callable[[str], None]
"""Takes a line for whoever waits."""


class Progress:
    """Lines with the time since the start, one for each step that is done.

    Args:
        tell: takes each line; default, standard output.
    """

    def __init__(self, tell: Tell | None = None) -> None:
        self._tell = tell or _write
        self._start = time.monotonic()

    def announce(self, what: str, seconds: float) -> None:
        """Says what is made, and about how many minutes it takes."""
        self._tell(f"making {what}: about {minutes(seconds)} on two idle cores")

    def step(self, text: str) -> None:
        """Says what is done or begins."""
        passed = time.monotonic() - self._start
        self._tell(f"[{passed // 60:.0f}:{passed % 60:02.0f}] {text}")


def minutes(seconds: float) -> str:
    """A time in whole minutes, rounded up.

    >>> minutes(20), minutes(61)
    ('1 minute', '2 minutes')
    """
    count = max(1, math.ceil(seconds / 60))
    return f"{count} minute{'s' * (count != 1)}"


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
