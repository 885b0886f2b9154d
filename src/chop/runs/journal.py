"""Append-only journal of finished points, keyed by their settings."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from chop.base.files import append_line, record_writes
from chop.base.files.documents import check_count, count_values, parse_json
from chop.base.files.library_errors import get_reason
from chop.base.files.reading import open_regular
from chop.base.files.writers import check_size
from chop.errors import CheckpointError, ConfigError


class Journal:
    """Results by settings, appended as JSON lines as soon as they are available.

    Points with other settings in the same file are ignored. A line cut short by a kill is skipped,
    and its point counts as missing. Several processes may share a journal: lines are appended under
    a lock, and lines of other processes are read as well. A run that reads or adds a point lists
    the file as an artifact. Links are rejected, because lines would be appended to another file.

    Args:
        path: JSONL file, created with its folder at the first point.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     _ = Journal(Path(folder) / "points.jsonl").add({"width": 8}, {"accuracy": 0.5})
        ...     Journal(Path(folder) / "points.jsonl").find({"width": 8})
        {'accuracy': 0.5}
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._known: dict[str, dict[str, Any]] = {}
        self._read_bytes = self._read_values = 0

    def find(
        self,
        settings: Mapping[str, Any],
        is_result: Callable[[Mapping[str, Any]], bool] = lambda result: True,
    ) -> dict[str, Any] | None:
        """Returns the result for these settings, or None.

        Args:
            settings: key of the point.
            is_result: returns whether a stored result is usable. Others count as missing, because
                anybody may have written the file.
        """
        self._read_more()
        result = self._known.get(compute_key(settings))
        if result is None or not is_result(result):
            return None
        record_writes(self.path)
        return result

    def get(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the result for these settings.

        Raises:
            KeyError: if there is no result.
        """
        result = self.find(settings)
        if result is None:
            raise KeyError(compute_key(settings))
        return result

    def add(self, settings: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
        """Appends a result and flushes it to disk. The last result of a key counts.

        Raises:
            WriteError: if the disk is full or read-only, or the journal would exceed its size
                limit.
            CheckpointError: if the journal cannot be read.
        """
        self._append(settings, dict(result))
        self._known[compute_key(settings)] = dict(result)
        return dict(result)

    def remove(self, settings: Mapping[str, Any]) -> None:
        """Removes the result for these settings by appending a line.

        Raises:
            WriteError: if the disk is full or read-only, or the journal would exceed its size
                limit.
            CheckpointError: if the journal cannot be read.
        """
        if self.find(settings) is not None:
            self._append(settings, None)
            del self._known[compute_key(settings)]

    def _append(self, settings: Mapping[str, Any], result: dict[str, Any] | None) -> None:
        entry = {"settings": settings, "result": result}
        line = json.dumps(entry, sort_keys=True, default=str)
        self._read_more()
        size, values = self._read_bytes + len(line) + 1, self._read_values + count_values(line)
        check_size(self.path, size, values, "journal")
        append_line(self.path, line)

    def _read_more(self) -> None:
        """Reads lines appended since the last read, by any process.

        Raises:
            CheckpointError: if the journal is a link, not a regular file, too large or unreadable.
        """
        try:
            with open_regular(self.path, "journal", follow_links=False) as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(self._read_bytes)
                appended = file.read(max(size - self._read_bytes, 0))
            check_count(appended)
        except (FileNotFoundError, NotADirectoryError):
            return
        except (OSError, ConfigError) as error:
            raise CheckpointError(f"'{self.path}' cannot be read: {get_reason(error)}.") from None
        # A last line without a line break may still be in the process of being written.
        whole = appended[: appended.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        self._read_values += count_values(whole)
        for line in appended.split(b"\n"):
            self._read(line)

    def _read(self, line: bytes) -> None:
        try:
            entry = parse_json(line)
            key, result = compute_key(entry["settings"]), entry["result"]
        except (ValueError, KeyError, TypeError):
            return
        if isinstance(result, dict):
            self._known[key] = result
        else:
            self._known.pop(key, None)


def has_numbers(result: Mapping[str, Any], names: Iterable[str] = ()) -> bool:
    """Returns whether all values of a result are numbers or None.

    >>> has_numbers({"accuracy": 0.5, "low": None}, ["accuracy"]), has_numbers({"accuracy": "x"})
    (True, False)
    """
    return all(isinstance(result.get(name), int | float) for name in names) and all(
        value is None or isinstance(value, int | float) for value in result.values()
    )


def compute_key(settings: Mapping[str, Any]) -> str:
    """Returns the digest of settings: equal settings have equal keys."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
