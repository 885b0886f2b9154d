"""Nested inputs (pytrees): mappings, tuples, lists, named tuples and dataclasses."""

from __future__ import annotations

import copy
import dataclasses
import enum
import operator
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from torch.nn.utils.rnn import PackedSequence

from chop.errors import CaptureError, GuardError


def tree_children(value: Any) -> dict[Any, Any] | None:
    """The values that a value is made of, by key, index or field; None for a single one.

    Raises:
        CaptureError: it is a PackedSequence, whose sizes are data.
    """
    if isinstance(value, PackedSequence):
        raise CaptureError(
            "expected tensors as inputs, got a PackedSequence; pass the padded tensor and the "
            "lengths, and call pack_padded_sequence inside forward"
        )
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | list):
        return dict(enumerate(value))
    if has_fields(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def check_leaf(name: str, value: Any) -> None:
    """Checks an input that is not made of parts: a graph would not see it change.

    Raises:
        CaptureError: it is an object whose attributes a model reads.
    """
    plain = not hasattr(value, "__dict__") or callable(value) or isinstance(value, enum.Enum)
    equality: Any = type(value).__eq__
    by_value = equality is not object.__eq__ and not isinstance(value, SimpleNamespace)
    if not plain and not by_value:
        raise CaptureError(
            f"expected tensors, numbers, tuples, dicts or dataclasses of these as the input "
            f"{name}, got a {type(value).__qualname__}, whose attributes a graph cannot follow; "
            "make it a dataclass"
        )


def has_fields(value: Any) -> bool:
    """Whether a value is a dataclass whose parts are attributes and not entries."""
    is_object = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return is_object and not isinstance(value, Mapping | tuple | list)


def field_of(value: Any, name: str) -> Any:
    """A field of a dataclass that is an input, or of a namespace in its place.

    Not `getattr`: a file names the field, and no method or property may be read by it.

    Raises:
        GuardError: there is no such field.

    >>> field_of(SimpleNamespace(scale=2.0), "scale")
    2.0
    """
    if isinstance(value, SimpleNamespace):
        names = set(vars(value))
    else:
        is_object = dataclasses.is_dataclass(value)
        names = {field.name for field in dataclasses.fields(value)} if is_object else set()
    if name not in names:
        raise GuardError(f"expected an input with the field '{name}', got {value!r}")
    return getattr(value, name)


def child_getter(value: Any) -> Callable[..., Any]:
    """The function that takes a part out of such a value."""
    return field_of if has_fields(value) else operator.getitem


def child_name(value: Any, name: str, key: Any) -> str:
    """How Python writes a part of the input `name`: `batch['mask']`, `pair[1]`, `point.x`."""
    return f"{name}.{key}" if has_fields(value) else f"{name}[{key!r}]"


def tree_rebuild(value: Any, parts: Mapping[Any, Any]) -> Any:
    """A value of the same kind with other parts."""
    if isinstance(value, Mapping):
        return type(value)(**parts) if dataclasses.is_dataclass(value) else dict(parts)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*parts.values())
    if isinstance(value, tuple | list):
        return type(value)(parts.values())
    twin = copy.copy(value)
    for name, part in parts.items():
        # Frozen dataclasses have no other way.
        object.__setattr__(twin, name, part)
    return twin


def tree_map(function: Callable[[Any], Any], value: Any) -> Any:
    """A value of the same kind with a function applied to each single value in it."""
    parts = tree_children(value)
    if parts is None:
        return function(value)
    return tree_rebuild(value, {key: tree_map(function, part) for key, part in parts.items()})
