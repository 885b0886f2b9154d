"""Content of Python values. A model's code cannot distinguish values of equal content."""

from __future__ import annotations

import copy
import enum
import functools
import sys
import types
import weakref
from array import array
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Container, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from chop.captured.state.weak_cache import weak_cache

MISSING = object()
"""Value of a missing variable."""

MAX_ITEMS = 4096
"""Maximum number of compared items; larger containers are compared by length."""
MAX_BYTES = 65_536
"""Maximum bytes of arrays that are compared by element; larger ones are compared by shape."""

PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None)),
    *(torch.Size, torch.dtype, torch.device),
)
MAPPINGS = (
    *(dict, types.MappingProxyType, ChainMap, UserDict),
    *(weakref.WeakKeyDictionary, weakref.WeakValueDictionary),
)
BUFFERS = (array, bytearray, memoryview)
"""Containers that create their items on access."""
CONTAINERS = (*MAPPINGS, *BUFFERS, list, tuple, set, frozenset, deque, UserList)
_WITHOUT_FIELDS = (
    *(type, types.ModuleType, types.BuiltinFunctionType, types.CodeType),
    *(nn.Module, Tensor, enum.Enum, np.ndarray, np.generic, weakref.ref),
)
_Slot = types.MemberDescriptorType


class Same:
    """Stand-in for a value without parts; equals itself and values that its type considers equal.

    Args:
        value: the value.
        held: False: the value is not kept alive, and is compared by identity.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Any, held: bool = True) -> None:
        self._get = (lambda: value) if held else weakref.ref(value)
        self._held = held

    def __eq__(self, other: object) -> bool:
        one: Any = self._get()
        two: Any = other._get() if isinstance(other, Same) else None
        if one is two or type(one) is not type(two) or not self._held:
            return one is two and one is not None
        if isinstance(one, Tensor):
            two = two.to(one.device)
            alike = one.dtype == two.dtype and one.shape == two.shape
            return alike and bool(((one == two) | ((one != one) & (two != two))).all())
        try:
            return bool(one == two)
        except Exception:  # raised by a user-defined comparison
            return False


def content(
    value: Any,
    held: bool = True,
    names: Container[str] | None = None,
    inside: tuple[int, ...] = (),
) -> Any:
    """Returns nested tuples, which are equal for values of the same types and contents.

    `1`, `1.0` and `True` differ, and so do `0.0` and `-0.0`; a NaN equals a NaN. The order of a
    mapping counts. Functions are equal if their code, defaults and closures are.

    Args:
        value: any value.
        held: False: tensors and modules are not kept alive, and are compared by identity.
        names: relevant attributes of objects. Default: all.
        inside: identities of the values that contain this one.

    >>> content([1, True]) == content([1, 1]), content(float("nan")) == content(float("nan"))
    (False, True)
    """
    cls = type(value)
    if isinstance(value, Same):
        return value
    if isinstance(value, PLAIN):
        return cls, repr(value) if isinstance(value, float | complex) else value
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        data = value.tobytes() if value.nbytes <= MAX_BYTES else b""
        return cls, value.dtype.str, value.shape, data
    if isinstance(value, CONTAINERS) and len(value) > MAX_ITEMS:
        return cls, len(value)
    if id(value) in inside:
        return cls, inside.index(id(value))
    parts = get_parts(value, names)
    if parts is None:
        return Same(value, held or not isinstance(value, Tensor | nn.Module))
    contents = [content(part, held, names, (*inside, id(value))) for part in parts]
    return cls, tuple(
        sorted(contents, key=repr) if isinstance(value, set | frozenset) else contents
    )


def same_content(one: Any, other: Any) -> bool:
    """Returns whether two values have the same types and contents, see `content`.

    While torch compiles a call, tensors have no values and are all assumed to be equal.
    """
    if torch.compiler.is_compiling():
        return type(one) is type(other) and (isinstance(one, Tensor) or bool(one == other))
    return bool(content(one) == content(other))


def own_copy(value: Any) -> Any:
    """Returns a copy that the caller's changes do not affect; code and modules are shared."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    memo = {id(x): x for x in _shared(value, set())}
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # an object that cannot be copied
        return value


def _shared(value: Any, seen: set[int]) -> Iterator[Any]:
    """Returns the values without parts inside a value, such as modules."""
    if id(value) in seen or isinstance(value, PLAIN):
        return
    seen.add(id(value))
    parts = get_parts(value)
    if parts is None and not isinstance(value, Tensor):
        yield value
    for part in parts or ():
        yield from _shared(part, seen)


def get_parts(value: Any, names: Container[str] | None = None) -> list[Any] | None:
    """Returns the parts of a value, with keys and names; None if it has no parts."""
    fields = get_fields(value)
    named = fields.items() if fields else ()
    parts = [x for name, part in named if names is None or name in names for x in (name, part)]
    if isinstance(value, types.FunctionType):
        code = Same((value.__code__, id(value.__globals__)))
        cells = map(cell_content, value.__closure__ or ())
        return [code, *cells, *_get_defaults(value), *parts]
    if isinstance(value, staticmethod | classmethod):
        return [value.__func__]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, weakref.ref):
        return [value()]
    if isinstance(value, enum.Enum):
        return [value.name, value.value]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, np.ndarray):
        return [*value.flat] if value.dtype.hasobject else []
    if isinstance(value, CONTAINERS):
        return parts + list_items(value)
    return None if fields is None else parts


def list_items(value: Any) -> list[Any]:
    """Returns the items of a container; for a mapping, its keys and values in turn."""
    if not isinstance(value, MAPPINGS):
        return [*value]
    # A user-defined dictionary may override `items`.
    pairs = dict.items(value) if isinstance(value, dict) else value.items()
    return [x for pair in pairs for x in pair]


def get_fields(value: Any) -> dict[str, Any] | None:
    """Returns the attributes of an object itself, including slots; None if it can have none."""
    cls: Any = type(value)
    slots = [] if isinstance(value, _WITHOUT_FIELDS) else get_slots(cls)
    if isinstance(value, _WITHOUT_FIELDS) or not (slots or hasattr(value, "__dict__")):
        return None
    if not hasattr(value, "__dict__") and cls.__module__ in sys.stdlib_module_names:
        return None  # fractions, paths: their slots are an implementation detail
    held = {name: getattr(value, name, MISSING) for name in slots}
    return {n: x for n, x in held.items() if x is not MISSING} | getattr(value, "__dict__", {})


@weak_cache
def get_slots(cls: type) -> list[str]:
    """Returns the names of the slots of a class."""
    homes = [vars(home) for home in cls.__mro__ if "__slots__" in vars(home)]
    return [n for home in homes for n, x in home.items() if isinstance(x, _Slot)]


def cell_content(cell: types.CellType) -> Any:
    """Returns the value of a closure variable; `MISSING` before its assignment."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _get_defaults(function: types.FunctionType) -> list[Any]:
    """Returns the defaults of a function's parameters."""
    return [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
