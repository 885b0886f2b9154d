"""JSON form of settings and results: plain values stay, everything else is described."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PLAIN = (str, int, float, bool, type(None))


def class_name(value: Any) -> str:
    """What `as_json` says of a value that it does not know."""
    return type(value).__name__


def as_json(value: Any, describe: Callable[[Any], Any] = class_name) -> Any:
    """A value as what JSON can hold: texts, finite numbers, lists, and mappings by texts.

    Args:
        value: dataclasses become mappings, sets and tuples lists, paths and numbers that are not
            finite texts.
        describe: gives what stands for a value of any other class.

    >>> as_json({"widths": (4, 8), "out": Path("runs"), "loss": math.inf})
    {'widths': [4, 8], 'out': 'runs', 'loss': 'inf'}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): as_json(item, describe) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(item, describe) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {f.name: as_json(getattr(value, f.name), describe) for f in fields}
    return str(value) if isinstance(value, Path) else describe(value)
