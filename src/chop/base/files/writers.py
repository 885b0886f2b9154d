"""Text, JSON and CSV files, written in one step; logs, a line at a time."""

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
from chop.base.files.documents import MOST_VALUES, count_values
from chop.base.files.locks import lock
from chop.base.files.reading import BOUNDS, require_file
from chop.base.files.refusals import make_folders, writing
from chop.errors import ConfigError, WriteError


def write_text(path: str | Path, text: str) -> None:
    """Atomic write of a UTF-8 text file.

    Raises:
        WriteError: the disk is full or read-only, or `path` can be no file.
    """
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


class TooLargeError(WriteError):
    """A file would be larger than what is read again."""


def write_json(path: str | Path, document: Any, kind: str | None = None) -> None:
    """Atomic write of a JSON file, indented; numbers that are not finite become null.

    Args:
        path: of the file.
        document: its content.
        kind: a key of `chop.base.files.reading.BOUNDS`, by which it is read; None: by none.
    Raises:
        TooLargeError: a file of its kind may not be as large.
        WriteError: the disk is full or read-only, or `path` can be no file.
    """
    text = json.dumps(_finite(document), indent=2, allow_nan=False) + "\n"
    if kind is not None:  # all is ASCII
        check_size(path, len(text), count_values(text), kind)
    write_text(path, text)


def check_size(path: str | Path, size_bytes: int, values: int, kind: str) -> None:
    """Raises TooLargeError where a file of a kind could not be read again.

    Args:
        path: of the file.
        size_bytes: size that it would have.
        values: number of values that it would have, see `count_values`.
        kind: a key of `chop.base.files.reading.BOUNDS`.
    """
    bound = BOUNDS[kind]
    if (bound is not None and size_bytes > bound) or values > MOST_VALUES:
        raise TooLargeError(
            f"'{path}' is not written: it would have {size_bytes:,} bytes and about {values:,} "
            f"values, and a file of its kind ({kind}) is read with {bound or math.inf:,} bytes "
            f"and {MOST_VALUES:,} values at most."
        )


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_csv(path: str | Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a CSV file with a header in one step; numbers have full precision.

    Raises:
        WriteError: the disk is full or read-only, or `path` can be no file.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def append_line(path: str | Path, line: str) -> None:
    """Appends a line to a UTF-8 text file; it is on the disk when this returns.

    Writers in other processes wait. Where a kill has cut the last line short, the new one begins
    after it.

    Raises:
        WriteError: the disk is full or read-only, or `path` can be no file.
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
    """Raises WriteError where a pipe, a socket or a device is in the place of a file."""
    try:
        require_file(path, "artifact")
    except FileNotFoundError:
        pass
    except ConfigError as error:
        raise WriteError(f"'{path}' cannot be written: {error}; remove it.") from None
