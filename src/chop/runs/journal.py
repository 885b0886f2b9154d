"""Append-only journal of finished points, keyed by the content of their settings."""

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
    """Results by settings, one JSON line each, written the moment they are there.

    Points of other settings in the same file stay and do no harm. A line that was cut short by a
    kill is passed over: that point is missing. Several processes may share a journal: each line is
    appended under a lock, and what others have appended is found too. A run that found a point in
    the file has the file among its artifacts, as one that added a point has. A journal that is a
    link is refused: lines would be appended to a file elsewhere.

    Args:
        path: a JSONL file; it and its folder are made with the first point.

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
        """The result of these settings, or None.

        Args:
            settings: key of the point.
            is_result: false for a result that its reader could not use, which counts as missing:
                anybody may have written the file.
        """
        self._read_more()
        found = self._known.get(compute_key(settings))
        if found is None or not is_result(found):
            return None
        record_writes(self.path)
        return found

    def get(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The result of these settings.

        Raises:
            KeyError: there is none.
        """
        found = self.find(settings)
        if found is None:
            raise KeyError(compute_key(settings))
        return found

    def add(self, settings: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
        """Appends a result; it is on the disk when this returns. The last one of a key counts.

        Raises:
            WriteError: the disk is full or read-only, or no reader would take a larger journal.
            CheckpointError: the journal cannot be read.
        """
        self._append(settings, dict(result))
        self._known[compute_key(settings)] = dict(result)
        return dict(result)

    def remove(self, settings: Mapping[str, Any]) -> None:
        """Forgets the result of these settings, by another line.

        Raises:
            WriteError: the disk is full or read-only, or no reader would take a larger journal.
            CheckpointError: the journal cannot be read.
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
        """Reads what was appended since the last time, by whatever process.

        Raises:
            CheckpointError: the journal is a link or no regular file, larger than a journal may be,
                or cannot be read.
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
        # A last line without its end may be half of one that is being written.
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
    """Returns true if all values of a result are numbers or None.

    >>> has_numbers({"accuracy": 0.5, "low": None}, ["accuracy"]), has_numbers({"accuracy": "x"})
    (True, False)
    """
    return all(isinstance(result.get(name), int | float) for name in names) and all(
        value is None or isinstance(value, int | float) for value in result.values()
    )


def compute_key(settings: Mapping[str, Any]) -> str:
    """Digest of the content of settings: equal settings, equal key."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
