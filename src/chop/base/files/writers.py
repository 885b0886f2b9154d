"""Atomic writers of text, JSON and CSV files, and appending of log lines."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from chop.base.files.atomic import atomic_file, record_writes
from chop.base.files.documents import MAX_VALUES, count_values
from chop.base.files.locks import lock
from chop.base.files.reading import BOUNDS, require_file
from chop.base.files.refusals import make_folders, writing
from chop.errors import ConfigError, WriteError


def write_text(path: str | Path, text: str) -> None:
    """Writes a UTF-8 text file atomically.

    Raises:
        WriteError: if the disk is full or read-only, or `path` cannot be a file.
    """
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


class TooLargeError(WriteError):
    """Raised if a file would exceed the size limit for reading."""


def write_json(path: str | Path, document: Any, kind: str | None = None) -> None:
    """Writes an indented JSON file atomically; non-finite numbers become null.

    Args:
        path: output file.
        document: its content.
        kind: key of `chop.base.files.reading.BOUNDS` for its size limit. None for no limit.
    Raises:
        TooLargeError: if the file would exceed the size limit of its kind.
        WriteError: if the disk is full or read-only, or `path` cannot be a file.
    """
    text = json.dumps(_finite(document), indent=2, allow_nan=False) + "\n"
    if kind is not None:  # all is ASCII
        check_size(path, len(text), count_values(text), kind)
    write_text(path, text)


def check_size(path: str | Path, size_bytes: int, values: int, kind: str) -> None:
    """Raises TooLargeError if a file of this kind could not be read again.

    Args:
        path: output file.
        size_bytes: size of the file.
        values: number of values, see `count_values`.
        kind: key of `chop.base.files.reading.BOUNDS`.
    """
    bound = BOUNDS[kind]
    if (bound is not None and size_bytes > bound) or values > MAX_VALUES:
        raise TooLargeError(
            f"'{path}' is not written: it would have {size_bytes:,} bytes and about {values:,} "
            f"values, and a file of this kind ({kind}) may have at most "
            f"{bound or math.inf:,} bytes and {MAX_VALUES:,} values."
        )


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_csv(path: str | Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a CSV file with a header atomically; numbers have full precision.

    Raises:
        WriteError: if the disk is full or read-only, or `path` cannot be a file.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def append_line(path: str | Path, line: str) -> None:
    """Appends a line to a UTF-8 text file and flushes it to disk.

    Writers in other processes wait. If a kill has cut the last line short, the new line begins
    after it.

    Raises:
        WriteError: if the disk is full or read-only, or `path` cannot be a file.
    """
    path = Path(path)
    with writing(path):
        make_folders(path.parent)
        _check_regular(path)
        with path.open("a+b") as file:
            with suppress(OSError):  # file systems without locks
                lock(file)
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
            torn = bool(size) and file.read(1) != b"\n"
            file.write(b"\n" * torn + line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        record_writes(path)


def _check_regular(path: Path) -> None:
    """Raises WriteError if the path is a pipe, a socket or a device."""
    try:
        require_file(path, "artifact")
    except FileNotFoundError:
        pass
    except ConfigError as error:
        raise WriteError(f"'{path}' cannot be written: {error}; remove it.") from None
