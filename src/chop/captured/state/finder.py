"""Search of what the code of modules can read: attributes, classes, closures, files, containers."""

from __future__ import annotations

import functools
import os
import sys
import types
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from chop.captured.state.code_search import (
    CodeSearch,
    code_names,
    functions_of,
    is_own_class,
    names_in,
    texts_in,
)
from chop.captured.state.values import (
    CONTAINERS,
    MAX_ITEMS,
    MISSING,
    PLAIN,
    cell_content,
    content,
    fields_of,
    items_of,
    parts_of,
    slots_of,
)
from chop.private import modules

OF_FUNCTIONS = ("__code__", "__defaults__", "__kwdefaults__")
"""The attributes of a function that count."""

# The parts of an owner are mappings, written in Python.
FIELDS, KEYS, COPY = "{}.__dict__", "{}", "{{**{}}}"
MEMBERS = {name: f"{{}}.__dict__['{name}']" for name in modules.MEMBERS}
SLOTS, FUNCTION, ITEMS = "fields_of({})", "function({})", "numbered(items_of({}))"
CONTENT, CONTEXT = "{{0: content({})}}", "{{0: variable({})}}"


class Origin(NamedTuple):
    """The module whose code reads a value, by path, what to call the value, and that code."""

    path: str
    label: str
    code: types.CodeType


Keys = dict[Any, Origin]
"""Names of values; `...` is all."""
Found = dict[tuple[int, str], tuple[Any, Keys]]
"""Owners of values and what is read there, by identity and part."""


def _function(function: types.FunctionType) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    variables = {name: cell_content(cell) for name, cell in cells}
    return variables | {name: getattr(function, name) for name in OF_FUNCTIONS}


def _variable(variable: ContextVar[Any]) -> Any:
    try:
        return variable.get()  # its own default too
    except LookupError:
        return MISSING


def _numbered(values: Iterable[Any]) -> dict[int, Any]:
    return dict(enumerate(values))


SCOPE: dict[str, Any] = {"fields_of": fields_of, "items_of": items_of, "content": content}
SCOPE |= {"function": _function, "numbered": _numbered, "variable": _variable}
"""The functions in the text of parts."""


@functools.cache
def reader(part: str) -> Callable[[Any], Mapping[Any, Any]]:
    """Returns the function that reads a part of an owner."""
    read: Callable[[Any], Mapping[Any, Any]] = eval(f"lambda o: {part.format('o')}", SCOPE)
    return read


class Finder(ABC):
    """Walk from modules to all that their code can read. Subclasses say what of it counts.

    Args:
        search: the code of the modules; the walk adds what it reaches.
        found: takes the owners of values.
        known: identities of values that are not walked into.

    Attributes:
        tensors: those that were reached, by identity.
    """

    def __init__(self, search: CodeSearch, found: Found, known: set[int]) -> None:
        self.search, self.found, self.known = search, found, known
        self.tensors: dict[int, Tensor] = {}

    @abstractmethod
    def begin(self) -> None:
        """Begins a walk, perhaps with more code than the one before it."""

    @abstractmethod
    def visit_module(self, path: str, module: nn.Module) -> None:
        """Visits what counts of a module that runs."""

    @abstractmethod
    def visit_cells(self, function: types.FunctionType, origin: Origin) -> None:
        """Adds the variables of a function's closure, and its defaults."""

    @abstractmethod
    def attributes(self, owner: Any, origin: Origin) -> Collection[Any]:
        """The attributes of an object, function, file or class that count."""

    @abstractmethod
    def variables(self, function: types.FunctionType) -> Collection[str]:
        """The variables of its file that count in a function."""

    def find(self, modules: Mapping[str, nn.Module]) -> None:
        """Finds what the code reads of modules of one class, and all that it reaches from there."""
        size = -1
        # Objects that are reached bring code of their own, with further names.
        while size != (size := len(self.search.names) + len(self.search.functions)):
            self.begin()
            for path, module in modules.items():
                self.visit_module(path, module)
            for function in list(self.search.functions.values()):
                origin = Origin(next(iter(modules)), function.__name__, function.__code__)
                self.visit(function, origin)

    def visit(self, value: Any, origin: Origin) -> None:
        """Adds what counts of a value, and of all that it leads to."""
        if isinstance(value, Tensor):
            self.tensors[id(value)] = value
        elif not isinstance(value, PLAIN) and value is not MISSING and id(value) not in self.known:
            self.known.add(id(value))
            if any(functions_of(value)):
                self.search.add(value)
            if isinstance(value, types.FunctionType):
                self._visit_function(value, origin)
            elif isinstance(value, type):
                for home in filter(is_own_class, value.__mro__):
                    at_class = origin._replace(label=home.__name__)
                    self.add(home, FIELDS, self.attributes(home, at_class), at_class)
            else:
                self._visit_object(value, origin)

    def _visit_object(self, value: Any, origin: Origin) -> None:
        if isinstance(value, nn.Module | types.ModuleType):
            self.add(value, FIELDS, self.attributes(value, origin), origin)
        elif isinstance(value, (*CONTAINERS, np.ndarray, ContextVar)):
            self.add(value, *self.items(value), origin)
        if fields_of(value) is not None:
            if is_own_class(type(value)):
                self.search.add(type(value))
                self.visit(type(value), origin)
            part = SLOTS if slots_of(type(value)) else FIELDS
            self.add(value, part, self.attributes(value, origin), origin)
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return
        if not isinstance(value, CONTAINERS) or len(value) <= MAX_ITEMS:
            for each in parts_of(value, ()) or ():
                self.visit(each, origin)

    def _visit_function(self, function: types.FunctionType, origin: Origin) -> None:
        self.visit_cells(function, origin)
        if id(function) not in self.search.functions:
            return
        code, path = function.__code__, origin.path
        self.add(function.__globals__, KEYS, self.variables(function), Origin(path, "", code))
        named = Origin(path, function.__name__, code)
        self.add(function, FIELDS, self.attributes(function, named), named)
        for name in names_in(code, ("IMPORT_NAME",)):
            self.visit(sys.modules.get(name), Origin(path, name, code))
        if {"environ", "getenv"} & code_names(code):
            self.add(os.environ, KEYS, texts_in(code), Origin(path, "os.environ", code))

    def items(self, value: Any) -> tuple[str, Collection[Any]]:
        """The part of a container; all at once where it makes its items when it is asked."""
        if isinstance(value, ContextVar):
            return CONTEXT, [0]
        makes = isinstance(value, np.ndarray | array | bytearray)
        return (CONTENT, [0]) if makes or len(value) > MAX_ITEMS else (ITEMS, [...])

    def add(self, owner: Any, part: str, keys: Collection[Any], origin: Origin) -> None:
        """Adds values of an owner, and visits them.

        Args:
            owner: the object, container, function, class or file.
            part: what is read of it.
            keys: the keys of the values there.
            origin: its own.
        """
        now = reader(part)(owner)
        _, known = self.found.setdefault((id(owner), part), (owner, {}))
        for key in keys:
            known.setdefault(key, self._inner(owner, part, key, origin))
            if key in now and part != CONTENT:
                self.visit(now[key], known[key])
            elif key is ... and part != ITEMS:
                for value in now.values():
                    self.visit(value, origin)

    def _inner(self, owner: Any, part: str, key: Any, origin: Origin) -> Origin:
        path, label, code = origin
        if key is ... or part in (CONTENT, CONTEXT):
            return origin
        if owner is os.environ:
            return Origin(path, f"{label}['{key}']", code)
        return Origin(path, f"{label}.{key}" if label else key, self.search.names.get(key, code))
