"""Table of `docs/run-files.md`: which files the runs of which commands have."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from chop.runs import Run

PAGE = Path(__file__).parents[1] / "docs/run-files.md"
COMMAND = re.compile(r"`chop ((?:[a-z]+ ?)+)")
ANY = re.compile(r"[A-Z]{3,}")
"""A word that stands for a name of the run's own."""


@dataclass(frozen=True)
class FileRow:
    """A row: patterns of paths, of whole folders too, and the kinds of runs that begin so."""

    patterns: tuple[str, ...]
    kinds: tuple[str, ...]

    def has(self, kind: str, path: str) -> bool:
        parts = path.split("/")
        starts = ["/".join(parts[: i + 1]) for i in range(len(parts))]
        return any(f"{kind} ".startswith(f"{each} ".lstrip()) for each in self.kinds) and any(
            fnmatch.fnmatchcase(start, ANY.sub("*", pattern))
            for pattern in self.patterns
            for start in starts
        )


def file_rows() -> list[FileRow]:
    """The rows; a row of every command is of all kinds."""
    table = PAGE.read_text().partition("contains these keys")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    return [
        FileRow(tuple(re.findall(r"`(.*?)`", names)), kinds_of(origin))
        for names, _, origin in cells
    ]


def kinds_of(origin: str) -> tuple[str, ...]:
    if origin.startswith("every command"):
        return ("",)
    return tuple(found.strip() for found in COMMAND.findall(origin))


@contextmanager
def recorded() -> Iterator[list[tuple[str, str]]]:
    """Inside, kind of run and path of each file that a finished run has written are noted."""
    seen: list[tuple[str, str]] = []
    finish = Run._finished

    def noting(run: Run, artifacts: object) -> object:
        finished = finish(run, artifacts)  # type: ignore[arg-type]
        seen.extend((finished.kind, each.path) for each in finished.artifacts)
        return finished

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "_finished", noting)
        yield seen
