"""Outer values: what a model's code reads of classes, files, closures, attributes, environment.

A graph holds them as constants. A call warns where one of them is no longer what it was.
"""

from __future__ import annotations

import inspect
import os
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from chop.captured.state.outer_state import MISSING, functions_of, is_own, is_own_file, names_in
from chop.private.torch_api import version_of

KEY = "_outer_values"
"""Where a captured module keeps them."""

_PLAIN = (bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)
_OWN_FIELDS = frozenset(vars(nn.Module()))
_STORED = ("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL")
_MAX_ITEMS = 256
"""Of larger containers only the length is compared."""


class OuterValueWarning(UserWarning):
    """A value that a model's code reads has changed since the model was captured."""


@dataclass(frozen=True, eq=False)
class _Read:
    """A value that code reads.

    Attributes:
        label: what to call it.
        where: `file:line` that reads it.
        now: gives the value.
        shown: the value at capture, for messages.
        before: its content at capture, see `_content`.
    """

    label: str
    where: str
    now: Callable[[], Any]
    shown: Any
    before: Any


@dataclass(frozen=True)
class _Attribute:
    """A plain attribute of a module that its code reads, and the module's path."""

    path: str
    name: str
    before: Any


class OuterValues:
    """The values that the code of a model reads, as they were at capture.

    Copies of a graph share them; a pickle has none, since another process starts with others.

    Args:
        modules: the modules by path whose Python was recorded.
    """

    def __init__(self, modules: Mapping[str, nn.Module] | None = None) -> None:
        reads: dict[Any, _Read] = {}
        self._attributes: list[_Attribute] = []
        searches: dict[type, _Search] = {}
        for path, module in (modules or {}).items():
            cls = type(module)
            if cls not in searches:
                searches[cls] = _Search(cls, reads)
            self._add_attributes(path, module, searches[cls], reads)
        self._reads = tuple(reads.values())

    def _add_attributes(
        self, path: str, module: nn.Module, search: _Search, reads: dict[Any, _Read]
    ) -> None:
        alive = weakref.ref(module)
        for name in search.names.keys() - search.stored - _OWN_FIELDS:
            value = _member(module, name)
            label = f"{path or type(module).__name__}.{name}"
            if value is MISSING or isinstance(value, Tensor) or not _is_value(value):
                search.look_up_members(value, label, search.names)
                continue

            def now(name: str = name, value: Any = value, alive: Any = alive) -> Any:
                found = alive()
                return value if found is None else _member(found, name)

            _add(reads, (id(module), name), label, search.names[name], now)
            self._attributes.append(_Attribute(path, name, _content(value)))

    def warn(self, captured: nn.Module) -> None:
        """Warns of what has changed.

        Args:
            captured: the module whose graph holds the values; attributes that were set on it
                have no effect.
        """
        for read in self._reads:
            value = read.now()
            if value is read.shown and isinstance(value, _PLAIN):
                continue
            if _content(value) != read.before:
                shown = "other content" if value is read.shown else repr(read.shown)
                _warn(read.label, f"was captured with {shown}", read.where)
        for each in self._attributes:
            module = captured.get_submodule(each.path)
            value = vars(module).get(each.name, MISSING)
            if value is not MISSING and _content(value) != each.before:
                label = f"{each.path or 'the model'}.{each.name}"
                _warn(label, "was set on the graph, which has its value as a constant", "")

    def __deepcopy__(self, memo: Any) -> OuterValues:
        return self

    def __reduce__(self) -> Any:
        return OuterValues, ()


def _warn(label: str, what: str, where: str) -> None:
    read = f", read at {where}," if where else ""
    warnings.warn(
        f"{label}{read} {what}: the graph keeps what it computed then; capture the model again",
        OuterValueWarning,
        stacklevel=4,
    )


class _Search:
    """Finds what the forward of a module class, and the functions that it names, read.

    Args:
        cls: the class.
        reads: takes what was found, by owner and name.

    Attributes:
        names: all names in that code, each with the line of the first.
        stored: those that the code sets itself: they are state, which the capture looks for.
    """

    def __init__(self, cls: type[nn.Module], reads: dict[Any, _Read]) -> None:
        self.names: dict[str, str] = {}
        self.stored: set[str] = set()
        self._reads = reads
        self._seen: set[int] = set()
        for function in functions_of(inspect.getattr_static(cls, "forward", None)):
            self._visit(function, cls)
        for key in [key for key in reads if key[1] in self.stored]:
            del reads[key]

    def look_up_members(self, owner: Any, label: str, names: Mapping[str, str]) -> None:
        """Adds what code reads of a file or an object of the user's.

        Args:
            owner: anything; others have nothing that is added.
            label: what to call it.
            names: the names in the code, with lines.
        """
        for name in names if _is_own_thing(owner) else ():
            self._look_up(owner, name, f"{label}.{name}", names[name])

    def _visit(self, function: types.FunctionType, cls: type | None) -> None:
        if id(function) in self._seen or not is_own(function):
            return
        self._seen.add(id(function))
        code = function.__code__
        names = names_in(code)
        self.names = {**names, **self.names}
        self.stored |= names_in(code, _STORED).keys()
        for name, where in names.items():
            self._look_up(function.__globals__, name, name, where)
            self.look_up_members(_member(function.__globals__, name), name, names)
            if cls is not None and any(functions_of(_member(cls, name))):
                self._look_up(cls, name, f"{cls.__name__}.{name}", where, cls)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self._add_cell(name, cell, names.get(name, f"{code.co_filename}:{code.co_firstlineno}"))
        if {"environ", "getenv"} & names.keys():
            self._add_environment(code, names)

    def _look_up(
        self, owner: Any, name: str, label: str, where: str, cls: type | None = None
    ) -> None:
        def now() -> Any:
            return _member(owner, name)

        value = now()
        if _is_value(value) or callable(value):
            _add(self._reads, (id(owner), name), label, where, now)
        for function in functions_of(value):
            self._visit(function, cls)

    def _add_cell(self, name: str, cell: types.CellType, where: str) -> None:
        def now() -> Any:
            try:
                return cell.cell_contents
            except ValueError:
                return MISSING

        value = now()
        if _is_value(value) or isinstance(value, types.FunctionType):
            _add(self._reads, (id(cell), name), name, where, now)
        for function in functions_of(value):
            self._visit(function, None)

    def _add_environment(self, code: types.CodeType, names: Mapping[str, str]) -> None:
        where = names.get("environ") or names["getenv"]
        for key in filter(str.isidentifier, _texts(code)):
            label = f"os.environ['{key}']"
            _add(self._reads, (id(os.environ), key), label, where, partial(os.getenv, key))


def _add(reads: dict[Any, _Read], key: Any, label: str, where: str, now: Callable[[], Any]) -> None:
    value = now()
    reads.setdefault(key, _Read(label, where, now, value, _content(value)))


def _member(owner: Any, name: str) -> Any:
    """The value of a name in globals, in an object or in its class, without properties' results."""
    if type(owner) is dict:
        return owner.get(name, MISSING)
    cls = owner if isinstance(owner, type) else type(owner)
    if cls is not owner:
        fields = getattr(owner, "__dict__", {})
        if name in fields:
            return fields[name]
    found = next((vars(home)[name] for home in cls.__mro__ if name in vars(home)), MISSING)
    if found is MISSING and isinstance(owner, dict):  # one that has its keys as attributes
        return dict.get(owner, name, MISSING)
    return found


def _is_own_thing(thing: Any) -> bool:
    """Whether a thing is a file or a class of the user's, or an object of such a class."""
    if isinstance(thing, types.ModuleType):
        return is_own_file(getattr(thing, "__file__", None) or "<frozen")
    if isinstance(thing, nn.Module | types.FunctionType) or not hasattr(thing, "__dict__"):
        return isinstance(thing, type)
    cls = thing if isinstance(thing, type) else type(thing)
    file = getattr(sys.modules.get(cls.__module__), "__file__", None) or "<frozen"
    is_namespace = cls is types.SimpleNamespace
    return is_namespace or cls.__module__ == "__main__" or is_own_file(file)


def _texts(code: types.CodeType) -> Iterator[str]:
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _texts(each)
        elif isinstance(each, str):
            yield each


def _is_value(value: Any) -> bool:
    """Whether a value is compared: no tables of tensors, which calls fill and graphs compute."""
    if isinstance(value, dict | list | set | tuple):
        items = dict.values(value) if isinstance(value, dict) else value
        return len(value) > _MAX_ITEMS or not any(isinstance(x, Tensor) for x in items)
    return value is None or isinstance(value, (*_PLAIN, Tensor))


def _content(value: Any) -> Any:
    """What can be compared later: numbers and text, what is in containers, else the identity."""
    if value is None or isinstance(value, _PLAIN):
        return type(value), repr(value) if isinstance(value, float | complex) else value
    if isinstance(value, dict | list | set | tuple):
        if len(value) > _MAX_ITEMS:
            return type(value), len(value)
        items: Iterable[Any] = dict.items(value) if isinstance(value, dict) else value
        if isinstance(value, set):
            return type(value), frozenset(value)
        return type(value), tuple(map(_content, items))
    if isinstance(value, Tensor) and not value.is_inference():
        return id(value), version_of(value)
    return id(value)
