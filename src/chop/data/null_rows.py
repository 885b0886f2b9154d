"""Files of JSON whose rows are `null`, which end the process: pyarrow reads past its memory."""

from __future__ import annotations

import bz2
import codecs
import gzip
import json
import lzma
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chop.errors import ConfigError
from chop.files.library_errors import library_errors
from chop.files.reading import open_regular

SUFFIXES = (".json", ".jsonl")
OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
CHUNK = 2**20
"""Bytes that are looked at together."""
INSIDE = (b",", b"[", b":")
"""Ends of lines before one that is inside an object or array of several lines."""
NULL_ITEM = re.compile(rb"[\[,]\s*null\b")


def check_rows(path: Path) -> None:
    """Raises ConfigError where a file of JSON has `null` in the place of a row.

    Args:
        path: a file of any kind, or a folder, whose files are looked at.
    """
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    for file in files:
        ends = [end.lower() for end in file.suffixes[-2:]]
        is_packed = bool(ends) and ends[-1] in OPENERS
        if ends and ends[-2 if is_packed and len(ends) > 1 else -1] in SUFFIXES and file.is_file():
            with library_errors(file, error=ConfigError):
                _check_file(file, OPENERS.get(ends[-1]))


def _check_file(path: Path, unpacked: Callable[..., Any] | None) -> None:
    with open_regular(path, "table") as file:
        text = file if unpacked is None else unpacked(file)
        first = text.read(CHUNK)
        if first.lstrip().startswith(b"["):
            _check_array(first + text.read(), path)
        elif _has_null_line(first.removeprefix(codecs.BOM_UTF8), text):
            raise ConfigError(f"file '{path}': a row is null, expected an object in each line.")


def _check_array(content: bytes, path: Path) -> None:
    """Looks closer where `null` may be an item of the outer array, rather than of one inside."""
    if NULL_ITEM.search(content) and None in json.loads(content):
        raise ConfigError(f"file '{path}': a row is null, expected an object for each.")


def _has_null_line(part: bytes, file: Any) -> bool:
    """Whether a line is `null`, but for those inside an object of several lines."""
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
