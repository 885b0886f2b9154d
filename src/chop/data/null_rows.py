"""Checks for `null` rows of JSON files, which crash pyarrow, and for missing lists of tables."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from chop.base.files.library_errors import library_errors
from chop.data.unpacked import JSON, contents
from chop.errors import ConfigError

if TYPE_CHECKING:
    from datasets import Dataset

CHUNK = 2**20
"""Number of bytes checked at once."""
INSIDE = (b",", b"[", b":")
"""Line ends before a `null` that is inside a multi-line object or array."""
NULL_ITEM = re.compile(rb"[\[,]\s*null\b")


def check_rows(files: Iterable[str | Path], are_all_json: bool = False) -> None:
    """Raises ConfigError if a JSON file has `null` in place of a row.

    Args:
        files: files of any kind, also compressed ones and archives. `check_unpacked` bounds them.
        are_all_json: all files are read as JSON, independently of their names.
    """

    def is_wanted(name: str) -> bool:
        ends = {suffix.lower() for suffix in Path(name).suffixes[-2:]}
        return are_all_json or not ends.isdisjoint(JSON)

    for file in map(Path, files):
        if file.is_file():
            with library_errors(file, error=ConfigError):
                for text in contents(file, is_wanted):
                    _check_text(text, file)


def _check_text(text: IO[bytes], path: Path) -> None:
    first = text.read(CHUNK)
    if first.lstrip().startswith(b"["):
        _check_array(first + text.read(), path)
    elif _has_null_line(first.removeprefix(codecs.BOM_UTF8), text):
        raise ConfigError(f"file '{path}': a row is null, expected an object per line.")


def _check_array(content: bytes, path: Path) -> None:
    """Checks whether `null` is an item of the outer array rather than of an inner one."""
    if NULL_ITEM.search(content) and None in json.loads(content):
        raise ConfigError(f"file '{path}': a row is null, expected an object per row.")


def _has_null_line(part: bytes, file: IO[bytes]) -> bool:
    """Returns true if a line is `null`, except inside a multi-line object."""
    before = b""
    while part:
        part += file.readline()
        if b"null" not in part:
            before = part.rstrip() or before
        for line in part.split(b"\n") if b"null" in part else ():
            words = line.split(maxsplit=1)
            if words[:1] == [b"null"] and not before.endswith(INSIDE):
                return True
            before = line.rstrip() or before
        part = file.read(CHUNK)
    return False


def check_lists(dataset: Dataset, names: Sequence[str]) -> None:
    """Raises ConfigError if a list of numbers is missing, which `datasets` does not stack.

    Args:
        dataset: table of `datasets`.
        names: columns to check.
    """
    for name in names:
        if hasattr(dataset.features[name], "feature"):
            column = dataset.select_columns([name]).with_format("arrow")[:][name]
            if column.null_count:
                raise ConfigError(
                    f"column '{name}': {column.null_count} of {len(column)} rows are missing "
                    "(None); fill them in or remove these rows."
                )
