"""Untrusted JSON and TOML documents, parsed as plain data with limits.

JSON parsers accept documents that break their readers: deep nesting that ends in a RecursionError,
integers with thousands of digits, an array instead of an object, duplicate keys. All of these raise
NotReadableError here, to which the caller adds the path.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from chop.base.files.reading import NotReadableError, read_bytes

DEEPEST = 200
"""Maximum nesting of objects and arrays."""
MAX_DIGITS = 1000
"""Maximum number of digits of an integer. Python rejects more than 4300; a float has up to 308."""
LARGEST = 10**MAX_DIGITS
MAX_VALUES = 2**22
"""Maximum number of values in a document, which take up to 240 bytes of memory each.
"""
KINDS: dict[type, str] = {dict: "an object", list: "an array"}
SURROGATE = re.compile("[\ud800-\udfff]")


def read_json(path: str | Path, kind: str, expected: type | None = dict) -> Any:
    """Reads a JSON file.

    Args:
        path: regular file to read.
        kind: key of `chop.base.files.reading.BOUNDS`.
        expected: dict or list. None for any value.
    Raises:
        OSError: if the file is missing or unreadable.
        NotReadableError: see `open_regular` and `parse_json`. The message does not name the file.
    """
    return parse_json(read_bytes(path, kind), expected)


def parse_json(text: str | bytes, expected: type | None = dict) -> Any:
    """Parses a JSON document as plain data.

    Args:
        text: text, or UTF-8 bytes.
        expected: dict or list. None for any value.
    Raises:
        NotReadableError: if it is invalid JSON, of another type than `expected`, nested deeper than
            `DEEPEST`, has duplicate keys, more than `MAX_VALUES` values, an integer of at least
            `LARGEST`, or an unpaired surrogate.

    >>> parse_json('{"bits": 4}')
    {'bits': 4}
    >>> parse_json('{"bits": 4, "bits": 8}')
    Traceback (most recent call last):
    chop.base.files.reading.NotReadableError: the key 'bits' occurs twice
    """
    check_count(text)
    try:
        document = json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise NotReadableError(f"it is nested deeper than {DEEPEST} levels") from None
    except NotReadableError:
        raise
    except ValueError as error:
        raise NotReadableError(_reason(error)) from None
    _check(document)
    if expected is not None and type(document) is not expected:
        raise NotReadableError(f"expected {KINDS[expected]}, got {_kind(document)}")
    return document


def read_toml(path: str | Path, kind: str) -> dict[str, Any]:
    """Reads a TOML file, with or without a byte-order mark.

    Args:
        path: regular file to read.
        kind: key of `chop.base.files.reading.BOUNDS`.
    Raises:
        OSError: if the file is missing or unreadable.
        NotReadableError: if it is invalid TOML, nested deeper than `DEEPEST`, has more than
            `MAX_VALUES` values, or an integer of at least `LARGEST`.
    """
    content = read_bytes(path, kind)
    check_count(content)
    try:
        document = tomllib.loads(content.decode("utf-8-sig"))
    except RecursionError:
        raise NotReadableError(f"it is nested deeper than {DEEPEST} levels") from None
    except ValueError as error:
        raise NotReadableError(_reason(error)) from None
    _check(document)
    return document


def check_count(text: str | bytes) -> None:
    """Raises ConfigError if a document may have too many values, before they use memory.

    Separators inside texts count as well, which is far from the limit in valid documents.
    """
    if count_values(text) > MAX_VALUES:
        raise NotReadableError(f"it has more than {MAX_VALUES:,} values")


def count_values(text: str | bytes) -> int:
    """Counts the separators of values, including those inside texts.

    >>> count_values('{"a": [1, 2]}')
    3
    """
    marks = (b",", b"[", b"{") if isinstance(text, bytes) else (",", "[", "{")
    return sum(map(text.count, marks))  # type: ignore[arg-type]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise NotReadableError(f"the key '{counts.most_common(1)[0][0]}' occurs twice")
    return mapping


def _reason(error: ValueError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 text: byte {error.start} is invalid"
    if isinstance(error, tomllib.TOMLDecodeError):
        reasons = {
            "Invalid value": "put texts in straight quotes",
            "Cannot overwrite": "a name occurs twice",
        }
        advice = (x for start, x in reasons.items() if str(error).startswith(start))
        return ": ".join([str(error), *advice])
    if isinstance(error, json.JSONDecodeError):
        return str(error)
    return "an integer has thousands of digits"  # Python's limit is 4300


def _check(document: Any) -> None:
    """Raises ConfigError if a document is too deep, or has values that break its readers."""
    pending: list[Iterator[Any]] = [iter([document])]
    while pending:
        value = next(pending[-1], pending)
        if value is pending:
            pending.pop()
        elif isinstance(value, dict | list):
            if len(pending) > DEEPEST:
                raise NotReadableError(f"it is nested deeper than {DEEPEST} levels")
            pending.append(chain(value, value.values()) if isinstance(value, dict) else iter(value))
        elif isinstance(value, int) and not -LARGEST < value < LARGEST:
            raise NotReadableError(f"an integer has more than {MAX_DIGITS} digits")
        elif isinstance(value, str) and not value.isascii() and SURROGATE.search(value):
            raise NotReadableError("a text has an unpaired surrogate")


def _kind(value: Any) -> str:
    return KINDS.get(type(value), "null" if value is None else f"a {type(value).__name__}")


def dump_toml(settings: Mapping[str, Any]) -> str:
    """Formats settings as TOML, tables last; None is omitted.

    >>> print(dump_toml({"layers": {"fc.1": {"weight": "4.mse"}}, "formats": [], "limit": 8}))
    formats = []
    limit = 8
    <BLANKLINE>
    [layers."fc.1"]
    weight = "4.mse"
    <BLANKLINE>
    """
    return "\n".join(_toml_lines(settings, ())) + "\n"


def _toml_lines(settings: Mapping[str, Any], path: tuple[str, ...]) -> Iterable[str]:
    tables = {key: value for key, value in settings.items() if isinstance(value, Mapping)}
    plain = {k: v for k, v in settings.items() if k not in tables and v is not None}
    if path and plain:
        yield f"\n[{'.'.join(map(_toml_key, path))}]"
    yield from (f"{_toml_key(k)} = {_toml_value(v)}" for k, v in plain.items())
    for key, table in tables.items():
        yield from _toml_lines(table, (*path, key))


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_value(key)


def _toml_value(value: Any) -> str:
    """Formats a JSON value as TOML; only surrogate pairs differ."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")
