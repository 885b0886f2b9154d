"""JSON form of settings and results: one for manifests and for `--json`."""

from __future__ import annotations

import dataclasses
import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence, Set
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

PLAIN = (str, int, float, bool, type(None))
USER = re.compile(r"(?<=://)[^/\s]*(?=@)")
OPTIONS = re.compile(r"(://[^\s?]*\?)\S+")
"""Of a URL: the user with the password, and what follows the question mark."""


@runtime_checkable
class Array(Protocol):
    """What arrays and scalars of numpy and torch have."""

    @property
    def ndim(self) -> int:
        """Number of dimensions; 0 for a scalar."""

    def item(self) -> Any:
        """The scalar as a Python number."""


def class_name(value: Any) -> str:
    """What `as_json` says of a value that it does not know."""
    return type(value).__name__


def without_secrets(argument: str) -> str:
    """A text without the users, passwords and options of the URLs in it."""
    return OPTIONS.sub(r"\1...", USER.sub("...", argument))


def as_json(value: Any, describe: Callable[[Any], Any] = class_name) -> Any:
    """A value as what JSON can hold: texts, finite numbers, null, lists, and mappings by texts.

    Args:
        value: dataclasses become mappings by field; sequences and sets lists; members of enums
            their values; scalars of numpy and torch Python's numbers; NaN and infinities null;
            paths texts; URLs lose their password and options.
        describe: gives what stands for a value of any other class.

    >>> as_json({"widths": (4, 8), "out": Path("runs"), "loss": math.inf})
    {'widths': [4, 8], 'out': 'runs', 'loss': None}
    """
    if isinstance(value, Enum):
        return as_json(value.value, describe)
    if isinstance(value, str | Path):
        return without_secrets(str(value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {without_secrets(str(key)): as_json(x, describe) for key, x in value.items()}
    if isinstance(value, Sequence | Set) and not isinstance(value, bytes):
        return [as_json(item, describe) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {f.name: as_json(getattr(value, f.name), describe) for f in fields}
    if isinstance(value, Array) and value.ndim == 0:
        return as_json(value.item(), describe)
    return describe(value)
