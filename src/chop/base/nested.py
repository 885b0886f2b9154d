"""Nested inputs (pytrees): mappings, tuples, lists, named tuples and dataclasses."""

from __future__ import annotations

import copy
import dataclasses
import enum
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from chop.errors import CaptureError, GuardError, describe


def tree_parts(value: Any, fields: bool = True) -> dict[Any, Any] | None:
    """Returns the parts of a value by key, index or field, or None for a leaf.

    Args:
        value: any value. Entries of mappings, tuples and lists keep their order.
        fields: treats all dataclasses as containers. False: only dataclasses that are mappings.

    >>> tree_parts([3, {"a": 4}]), tree_parts({"a": 4}), tree_parts("text")
    ({0: 3, 1: {'a': 4}}, {'a': 4}, None)
    """
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | list):
        return dict(enumerate(value))
    if fields and has_fields(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def tree_children(value: Any) -> dict[Any, Any] | None:
    """Returns `tree_parts` of an input.

    Raises:
        CaptureError: if it is a PackedSequence, whose sizes are data.
    """
    if isinstance(value, PackedSequence):
        raise CaptureError(
            "expected tensors as inputs, got a PackedSequence; pass the padded tensor and the "
            "lengths, and call pack_padded_sequence inside forward"
        )
    return tree_parts(value)


def check_leaf(name: str, value: Any) -> None:
    """Checks that a leaf input has no attributes whose changes a graph would miss.

    Raises:
        CaptureError: if it is an object with attributes that a model reads.
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
    """Returns whether a value is a dataclass with parts as attributes instead of entries."""
    is_object = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return is_object and not isinstance(value, Mapping | tuple | list)


def read_field(value: Any, name: str) -> Any:
    """Reads a field of a dataclass input, or of a namespace in its place.

    It does not use `getattr`, because a file names the field, which must not invoke methods or
    properties.

    Raises:
        GuardError: if the field does not exist.

    >>> read_field(SimpleNamespace(scale=2.0), "scale")
    2.0
    """
    if isinstance(value, SimpleNamespace):
        names = set(vars(value))
    else:
        is_object = dataclasses.is_dataclass(value)
        names = {field.name for field in dataclasses.fields(value)} if is_object else set()
    if name not in names:
        raise GuardError(f"expected an input with the field '{name}', got {describe(value)}")
    return getattr(value, name)


def child_getter(value: Any) -> Callable[..., Any]:
    """Returns the function that reads a part of such a value."""
    return read_field if has_fields(value) else operator.getitem


def child_name(value: Any, name: str, key: Any) -> str:
    """Formats a part of the input `name` as Python code: `batch['mask']`, `pair[1]`, `point.x`."""
    return f"{name}.{key}" if has_fields(value) else f"{name}[{key!r}]"


def tree_rebuild(value: Any, parts: Mapping[Any, Any]) -> Any:
    """Returns a value of the same structure with other parts."""
    if isinstance(value, Mapping):
        return type(value)(**parts) if dataclasses.is_dataclass(value) else dict(parts)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*parts.values())
    if isinstance(value, tuple | list):
        return type(value)(parts.values())
    twin = copy.copy(value)
    for name, part in parts.items():
        # Frozen dataclasses cannot be assigned to.
        object.__setattr__(twin, name, part)
    return twin


def tree_map(function: Callable[[Any], Any], value: Any) -> Any:
    """Applies a function to each leaf."""
    parts = tree_children(value)
    if parts is None:
        return function(value)
    return tree_rebuild(value, {key: tree_map(function, part) for key, part in parts.items()})


def tree_tensors(
    value: Any, fields: bool = True, inside: Callable[[Any], Iterable[Tensor]] | None = None
) -> Iterator[Tensor]:
    """Yields the tensors of a nested value in order.

    Args:
        value: tensor, container, or other value.
        fields: includes fields of dataclasses.
        inside: returns the tensors of other leaf objects. Default: no tensors.

    >>> [x.item() for x in tree_tensors({"a": Tensor([1]), "b": (Tensor([2]), None)})]
    [1.0, 2.0]
    """
    if isinstance(value, Tensor):
        yield value
        return
    parts = tree_parts(value, fields)
    if parts is not None:
        for part in parts.values():
            yield from tree_tensors(part, fields, inside)
    elif inside is not None:
        yield from inside(value)


def tree_map_with(function: Callable[[Any, Any], Any], value: Any, other: Any) -> Any:
    """Applies a function to each leaf and its counterpart in another value.

    Args:
        function: takes a leaf and its counterpart in `other`, or None if there is none.
        value: value that determines the structure.
        other: value of the same structure; any part may be None.

    >>> tree_map_with(lambda a, b: (a, b), {"x": [1, 2], "y": 3}, {"x": [4, 5], "y": None})
    {'x': [(1, 4), (2, 5)], 'y': (3, None)}

    Raises:
        ValueError: if a container in `other` has a different number of parts.
    """
    parts, others = tree_parts(value), tree_parts(other)
    if parts is None:
        return function(value, other)
    if others is not None and len(others) != len(parts):
        raise ValueError(f"expected {len(parts)} parts, got {len(others)}")
    others = others or dict.fromkeys(parts)
    mapped = {key: tree_map_with(function, part, others[key]) for key, part in parts.items()}
    return tree_rebuild(value, mapped)


def tree_pairs(value: Any, other: Any) -> Iterator[tuple[Any, Any]]:
    """Yields each leaf with its counterpart in `other`, or None.

    >>> list(tree_pairs({"x": [1, 2], "y": 3}, {"x": [4], "z": 5}))
    [(1, 4), (2, None), (3, None)]
    """
    parts = tree_parts(value)
    if parts is None:
        yield value, other
        return
    others = tree_parts(other) or {}
    for key, part in parts.items():
        yield from tree_pairs(part, others.get(key))
