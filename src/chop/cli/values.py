"""Values of options: parses texts into lists and mappings."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chop.base.files.documents import parse_json
from chop.errors import ConfigError

SEPARATOR = re.compile(r",(?!\s*[a-z_]+=)")
"""Comma between the values of a list, but not before `field=value`."""


def members(hint: Any) -> list[Any]:
    """Returns the types of a union without None; for another type, the type itself.

    >>> members(int | None)
    [<class 'int'>]
    """
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    parts = typing.get_args(hint) if union else (hint,)
    return [part for part in parts if part is not type(None)]


def is_list(hint: Any) -> bool:
    """Returns True for `tuple[T, ...]`. Unions with a text parse lists themselves."""
    return [typing.get_origin(kind) for kind in members(hint)] in ([tuple], [list])


def is_mapping(hint: Any) -> bool:
    """Returns True for a mapping from names."""
    return [typing.get_origin(kind) for kind in members(hint)] in ([Mapping], [dict])


def read_value(given: Any, hint: Any) -> Any:
    """Returns an option's value in the form that `chop.config.parse` accepts.

    Args:
        given: value from Typer; a sequence of texts for a list or mapping.
        hint: type of the field. Lists accept commas, repeated options, or both. Mappings accept
            `name=value`, with values parsed as JSON if possible.

    >>> read_value(["1,16", "64"], tuple[int, ...])
    [1, 16, 64]
    >>> read_value(["bits=4"], Mapping[str, float])
    {'bits': 4}
    """
    if is_mapping(hint):
        (kind,) = members(hint)
        value = typing.get_args(kind)[1]
        return _assigned(given, _read_list if is_list(value) else str if value is str else _read)
    if is_list(hint):
        (kind,) = members(hint)
        # `a:b=1,c=2` stays whole: the reader of formats explains the comma.
        parts = [part.strip() for text in given for part in SEPARATOR.split(text)]
        is_number = typing.get_args(kind)[0] in (int, float)
        return [_read(part) if is_number else part for part in parts if part]
    return given


def _assigned(pairs: Sequence[str], read: Callable[[str], Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for pair in pairs:
        name, _, text = (part.strip() for part in pair.partition("="))
        if not name or not text:
            example = name if name.replace("-", "_").isidentifier() else "bits"
            raise ConfigError(f"'{pair}': expected name=value, such as {example}=4.")
        if name in values:
            raise ConfigError(f"'{pair}': '{name}' was already set; set it once.")
        values[name] = read(text)
    return values


def _read_list(text: str) -> list[Any]:
    return [_read(part.strip()) for part in text.split(",")]


def _read(text: str) -> Any:
    try:
        return parse_json(text, None)
    except ValueError:
        return text
