"""Kinds of Python state, with functions that read, restore and compare an object's content."""

from __future__ import annotations

import copy
import operator
import pickle
import random
import types
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from chop.captured.state.finder import CONTEXT, FIELDS, FUNCTION, SLOTS, reader
from chop.captured.state.values import MAX_BYTES, MISSING, cell_content, get_fields, same_content

_PLAIN = (bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)


class StateKind(NamedTuple):
    """Functions that read, restore and compare the content of a kind of object."""

    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None]
    same: Callable[[Any, Any], bool]


def same(before: Any, after: Any) -> bool:
    """Returns whether a value is the same object, or an equal one of a plain type."""
    if before is after:
        return True
    return type(before) is type(after) and isinstance(before, _PLAIN) and bool(before == after)


def differing(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> list[Any]:
    """Returns the names whose values differ between two states."""
    missing = object()
    return [
        name
        for name in before.keys() | after.keys()
        if not same(before.get(name, missing), after.get(name, missing))
    ]


def _same_mappings(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> bool:
    return not differing(before, after)


def _same_sequences(before: list[Any], after: list[Any]) -> bool:
    return len(before) == len(after) and all(map(same, before, after))


def _same_draws(before: Any, after: Any) -> bool:
    if isinstance(before, Tensor):
        return torch.equal(before, after)
    return pickle.dumps(before) == pickle.dumps(after)


# The user's subclass of a built-in class may override its methods.
def _write_sequence(target: Any, content: list[Any]) -> None:
    cls: Any = list if isinstance(target, list) else deque
    cls.clear(target)
    cls.extend(target, content)


def _read_mapping(thing: dict[Any, Any]) -> dict[Any, Any]:
    return dict(OrderedDict.items(thing) if isinstance(thing, OrderedDict) else dict.items(thing))


def _write_mapping(target: dict[Any, Any], content: Mapping[Any, Any]) -> None:
    cls: Any = OrderedDict if isinstance(target, OrderedDict) else dict
    cls.clear(target)
    for key, value in content.items():
        cls.__setitem__(target, key, value)


def write_fields(target: Any, content: Mapping[str, Any]) -> None:
    """Sets the attributes of an object to exactly these."""
    fields = vars(target)
    # Attributes are changed in place, because other objects may hold this very dict.
    for name in fields.keys() - content.keys():
        del fields[name]
    fields.update(content)


def _write_attributes(target: Any, content: Mapping[str, Any]) -> None:
    now = get_fields(target) or {}
    # The class may refuse assignments, like a frozen dataclass.
    for name in now.keys() - content.keys():
        object.__delattr__(target, name)
    for name, value in content.items():
        if now.get(name, MISSING) is not value:
            object.__setattr__(target, name, value)


def _write_set(target: set[Any], content: set[Any]) -> None:
    target.clear()
    target.update(content)


def _generator_kind(read: str, write: str) -> StateKind:
    def put_back(draws: Any, state: Any) -> None:
        operator.methodcaller(write, state)(draws)

    return StateKind(operator.methodcaller(read), put_back, _same_draws)


def _write_draws(draws: np.random.Generator, state: Any) -> None:
    draws.bit_generator.state = state


def _read_cells(function: types.FunctionType) -> list[Any]:
    return [cell_content(cell) for cell in function.__closure__ or ()]


def _write_cells(function: types.FunctionType, contents: list[Any]) -> None:
    for cell, content in zip(function.__closure__ or (), contents, strict=True):
        if content is not MISSING:
            cell.cell_contents = content
        elif cell_content(cell) is not MISSING:
            del cell.cell_contents


def _write_context(target: ContextVar[Any], content: Mapping[int, Any]) -> None:
    if content[0] is not MISSING and target.get(MISSING) is not content[0]:
        target.set(content[0])


def _write_array(target: Any, content: Any) -> None:
    target[... if isinstance(target, np.ndarray) else slice(None)] = content


_BY_PART = {
    FIELDS: StateKind(lambda thing: dict(vars(thing)), write_fields, _same_mappings),
    SLOTS: StateKind(get_fields, _write_attributes, _same_mappings),
    FUNCTION: StateKind(_read_cells, _write_cells, _same_sequences),
    CONTEXT: StateKind(reader(CONTEXT), _write_context, _same_mappings),
}
_GENERATORS: Mapping[type, StateKind] = {
    random.Random: _generator_kind("getstate", "setstate"),
    np.random.RandomState: _generator_kind("get_state", "set_state"),
    torch.Generator: _generator_kind("get_state", "set_state"),
    np.random.Generator: StateKind(
        lambda draws: draws.bit_generator.state, _write_draws, _same_draws
    ),
}
_CONTAINERS: Mapping[Any, StateKind] = {
    dict: StateKind(_read_mapping, _write_mapping, _same_mappings),
    list | deque: StateKind(list, _write_sequence, _same_sequences),
    set: StateKind(set, _write_set, operator.eq),
    np.ndarray | array | bytearray: StateKind(copy.copy, _write_array, same_content),
}
_PLAIN_MAPPING = StateKind(dict, _write_mapping, _same_mappings)
_BY_TYPE = {
    **_GENERATORS,
    dict: _PLAIN_MAPPING,
    OrderedDict: _PLAIN_MAPPING,
    tuple: None,
    list: _CONTAINERS[list | deque],
    set: _CONTAINERS[set],
}
GENERATORS = tuple(_GENERATORS)
"""Types of random number generators."""


def get_kind(thing: Any, part: str) -> StateKind | None:
    """Returns the kind of a part of an object; None if it is immutable."""
    if type(thing) in _BY_TYPE:
        return _BY_TYPE[type(thing)]
    if part in _BY_PART:
        return _BY_PART[part]
    if isinstance(thing, np.ndarray) and (thing.nbytes > MAX_BYTES or not thing.flags.writeable):
        return None
    return next((kind for cls, kind in _CONTAINERS.items() if isinstance(thing, cls)), None)
