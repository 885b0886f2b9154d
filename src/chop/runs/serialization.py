"""JSON form of settings and results, for manifests and `--json`."""

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
"""Pattern of the user, password and options in a URL."""


@runtime_checkable
class Array(Protocol):
    """Interface of arrays and scalars of numpy and torch."""

    @property
    def ndim(self) -> int:
        """Number of dimensions; 0 for a scalar."""

    def item(self) -> Any:
        """Returns the scalar as a Python number."""


def class_name(value: Any) -> str:
    """Returns the class name, by which `as_json` represents unknown values."""
    return type(value).__name__


def without_secrets(argument: str) -> str:
    """Removes users, passwords and options from the URLs in a text."""
    return OPTIONS.sub(r"\1...", USER.sub("...", argument))


def as_json(value: Any, describe: Callable[[Any], Any] = class_name) -> Any:
    """Converts a value to JSON: texts, finite numbers, null, lists, and mappings with text keys.

    Args:
        value: Dataclasses become mappings, sequences and sets become lists, enum members their
            values, numpy and torch scalars numbers, NaN and infinities null, and paths texts. URLs
            lose their password and options.
        describe: returns the representation of values of other classes.

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
