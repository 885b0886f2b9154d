"""Search for values that the code of modules reads: attributes, closures, globals, containers."""

from __future__ import annotations

import functools
import os
import sys
import types
from abc import ABC, abstractmethod
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from chop.captured.state.code_search import (
    code_names,
    is_opaque,
    is_own_class,
    is_own_file,
    list_functions,
    names_in,
    stored_names,
    texts_in,
)
from chop.captured.state.values import (
    BUFFERS,
    CONTAINERS,
    MAX_ITEMS,
    MISSING,
    PLAIN,
    cell_content,
    content,
    get_fields,
    get_parts,
    get_slots,
    list_items,
)
from chop.private import modules

DEFAULTS = ("__defaults__", "__kwdefaults__")
FUNCTION_ATTRIBUTES = ("__code__", *DEFAULTS)
"""Attributes of a function that are compared."""

# Parts of an owner, as Python expressions for mappings.
FIELDS, KEYS, COPY = "{}.__dict__", "{}", "{{**{}}}"
MEMBERS = {name: f"{{}}.__dict__['{name}']" for name in modules.MEMBERS}
SLOTS, FUNCTION, ITEMS = "get_fields({})", "function({})", "numbered(list_items({}))"
CONTENT, CONTEXT = "{{0: content({})}}", "{{0: variable({})}}"


_BY_TEXT = {"getattr", "hasattr", "vars", "__dict__", "attrgetter", "environ", "getenv"}
"""Names in code that take names of attributes or environment variables as strings."""
_MODES = ("train", "eval")
"""Methods that set the mode of modules."""
_CALLED = {"forward", *_MODES}
_PICKLING = {
    *("__new__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__deepcopy__"),
    *("__repr__", "__str__", "__del__", "__init_subclass__", "__eq__", "__hash__"),
}
"""Special methods that no forward runs."""
ALL = (...,)
"""Key for all values of a part."""
_BUILTINS = (dict, OrderedDict, list, tuple, set, frozenset, deque)


class Origin(NamedTuple):
    """Code that reads a value.

    Attributes:
        path: the module that it belongs to.
        label: name of the value in messages.
        code: the code.
    """

    path: str
    label: str
    code: types.CodeType


_Values = Mapping[Any, Any]
Keys = dict[Any, Origin]
"""Names of values; `...` is all."""
Owners = dict[tuple[int, str], tuple[Any, Keys]]
"""Owners of values and their relevant keys, by identity and part."""


def _function(function: types.FunctionType) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    variables = {name: cell_content(cell) for name, cell in cells}
    return variables | {name: getattr(function, name) for name in FUNCTION_ATTRIBUTES}


def _variable(variable: ContextVar[Any]) -> Any:
    try:
        return variable.get()  # or its own default
    except LookupError:
        return MISSING


def _numbered(values: Iterable[Any]) -> dict[int, Any]:
    return dict(enumerate(values))


SCOPE: dict[str, Any] = {"get_fields": get_fields, "list_items": list_items, "content": content}
SCOPE |= {"function": _function, "numbered": _numbered, "variable": _variable}
"""Functions in the expressions of parts."""


@functools.cache
def reader(part: str) -> Callable[[Any], Mapping[Any, Any]]:
    """Returns the function that reads a part of an owner."""
    read: Callable[[Any], Mapping[Any, Any]] = eval(f"lambda o: {part.format('o')}", SCOPE)
    return read


class Finder(ABC):
    """Walk from modules of one class to all values that their code can read.

    Subclasses select the relevant values.

    Args:
        modules: the modules by path.
        owners: receives the owners of values.
        known: identities of values to skip.

    Attributes:
        functions: the user's functions that the code runs.
        names: names in all of the code, each with the first code that has it.
        texts: identifiers among its strings.
        tensors: reached tensors by identity.
        stored: attributes that code sets, by the class that it belongs to.
    """

    def __init__(self, modules: Mapping[str, nn.Module], owners: Owners, known: set[int]) -> None:
        self.modules, self.owners, self.known = modules, owners, known
        self.functions: dict[types.FunctionType, None] = {}
        self.names: dict[str, types.CodeType] = {}
        self.texts: set[str] = set()
        self.tensors: dict[int, Tensor] = {}
        self._classes: dict[type, None] = {}
        self.stored: defaultdict[type, set[str]] = defaultdict(set)
        self._searched: set[types.FunctionType] = set()

    @abstractmethod
    def begin(self) -> None:
        """Begins a walk, possibly with more code than the previous one."""

    @abstractmethod
    def visit_module(self, path: str, module: nn.Module) -> None:
        """Visits the relevant values of one module."""

    @abstractmethod
    def keys(self, owner: Any, part: str, now: _Values, origin: Origin) -> Collection[Any]:
        """Returns the relevant keys in a part of an owner with these values."""

    @abstractmethod
    def variables(self, function: types.FunctionType) -> Collection[str]:
        """Returns the relevant global variables of a function."""

    def find(self) -> None:
        """Finds the values that the code reads from the modules, and all that are reachable from
        them.
        """
        path, first = next(iter(self.modules.items()))
        self._classes[type(first)] = None
        size = -1
        # Objects that were reached have code of their own, with further names.
        while size != (size := len(self.names) + len(self._searched) + len(self._classes)):
            for cls in [*self._classes]:
                self._search_methods(cls)
            self.begin()
            for at, module in self.modules.items():
                self.visit_module(at, module)
            for function in [*self.functions]:
                self.visit(function, Origin(path, function.__name__, function.__code__))

    def stored_on(self, cls: type) -> set[str]:
        """Returns the attributes that code sets on a class; on modules, that of any method."""
        homes = self.stored if issubclass(cls, nn.Module) else cls.__mro__
        return set().union(*(self.stored.get(home, ()) for home in homes))

    def _search_methods(self, cls: type) -> None:
        """Searches the methods of a class that are called by name or by syntax."""
        for home in cls.__mro__:
            members = {} if is_opaque(home) else vars(home)
            special = {name for name in members if name[:2] == "__" and name not in _PICKLING}
            for name in special | (members.keys() & _CALLED) | (members.keys() & self.names.keys()):
                self._search(members[name], home)

    def _search(self, value: Any, home: type = object) -> None:
        """Searches the code of a function or a wrapper, which belongs to a class."""
        for function in {*list_functions(value)} - self._searched:
            self._searched.add(function)
            # A decorator holds the decorated function in its closure.
            for each in map(cell_content, function.__closure__ or ()):
                self._search(each, home)
            code, name = function.__code__, function.__name__
            is_own, is_method = is_own_file(code.co_filename), issubclass(home, nn.Module)
            if not (is_own or is_method) or (is_method and name == "__init__"):
                continue
            if is_own:
                self.functions[function] = None
            if name != "__init__":
                self.stored[home] |= stored_names(code)
            if name not in ("__init__", *_MODES):
                texts, names = texts_in(code), code_names(code)
                self.texts |= texts
                for each in (*names, *(texts if names & _BY_TEXT else ())):
                    self.names.setdefault(each, code)

    def visit(self, value: Any, origin: Origin) -> None:
        """Adds the relevant parts of a value, recursively."""
        if isinstance(value, Tensor):
            self.tensors[id(value)] = value
        elif not isinstance(value, PLAIN) and value is not MISSING and id(value) not in self.known:
            self.known.add(id(value))
            if type(value) not in _BUILTINS:
                self._search(value)
            if isinstance(value, types.FunctionType):
                self._visit_function(value, origin)
            elif isinstance(value, type):
                cls: type = type(value)
                for home in filter(is_own_class, (*value.__mro__, *cls.__mro__)):
                    self.add(home, FIELDS, origin._replace(label=home.__name__))
                if is_own_class(value) and not issubclass(value, nn.Module):
                    self._classes[value] = None
            else:
                self._visit_object(value, origin)

    def _visit_object(self, value: Any, origin: Origin) -> None:
        cls = type(value)
        # Models have many empty containers, and the type tests below are slow.
        if cls in _BUILTINS:
            part = ITEMS if len(value) <= MAX_ITEMS else CONTENT
            self.add(value, part, origin)
            parts = list_items(value) if part == ITEMS else []
        elif isinstance(value, nn.Module | types.ModuleType):
            self.add(value, FIELDS, origin)
            parts = []
            # A compiled module stores its members elsewhere, and a file has none.
            for name, part in MEMBERS.items():
                if isinstance(vars(value).get(name), dict):
                    self.add(value, part, origin)
        else:
            if isinstance(value, (*CONTAINERS, np.ndarray, ContextVar)):
                self.add(value, _get_part(value), origin)
            if get_fields(value) is not None:
                if is_own_class(cls):
                    self.visit(cls, origin)
                self.add(value, SLOTS if get_slots(cls) else FIELDS, origin)
            is_long = isinstance(value, CONTAINERS) and len(value) > MAX_ITEMS
            parts = [] if is_long else get_parts(value, ()) or []
        for each in parts:
            self.visit(each, origin)

    def _visit_function(self, function: types.FunctionType, origin: Origin) -> None:
        self.add(function, FUNCTION, origin)
        if function not in self.functions:
            return
        code, path = function.__code__, origin.path
        self.add(function.__globals__, KEYS, Origin(path, "", code), self.variables(function))
        self.add(function, FIELDS, Origin(path, function.__name__, code))
        for name in names_in(code, ("IMPORT_NAME",)):
            self.visit(sys.modules.get(name), Origin(path, name, code))
        if {"environ", "getenv"} & code_names(code):
            self.add(os.environ, KEYS, Origin(path, "os.environ", code), texts_in(code))

    def add(
        self, owner: Any, part: str, origin: Origin, keys: Collection[Any] | None = None
    ) -> None:
        """Adds values of an owner, and visits them.

        Args:
            owner: the object, container, function, class or file.
            part: the part that is read.
            origin: its own origin.
            keys: keys of the values in that part. Default: the relevant ones.
        """
        _, known = self.owners.setdefault((id(owner), part), (owner, {}))
        now = {} if part in (ITEMS, CONTENT) else reader(part)(owner)
        for key in self.keys(owner, part, now, origin) if keys is None else keys:
            if key not in known:
                known[key] = self._inner(owner, part, key, origin)
            # A visit can import a module lazily, which adds to the values of its owner.
            for value in [*now.values()] if key is ... else [now.get(key, MISSING)]:
                self.visit(value, known[key])

    def _inner(self, owner: Any, part: str, key: Any, origin: Origin) -> Origin:
        path, label, code = origin
        if key is ... or part in (CONTENT, CONTEXT):
            return origin
        if owner is os.environ:
            return Origin(path, f"{label}['{key}']", code)
        if part == FUNCTION:
            label = owner.__name__ if key in FUNCTION_ATTRIBUTES else ""
        return Origin(path, f"{label}.{key}" if label else key, self.names.get(key, code))


def _get_part(value: Any) -> str:
    """Returns the part of a container; as a whole if it creates its items on access."""
    if isinstance(value, ContextVar):
        return CONTEXT
    if isinstance(value, (np.ndarray, *BUFFERS)) or len(value) > MAX_ITEMS:
        return CONTENT
    return COPY if isinstance(value, dict) and hasattr(type(value), "__getattr__") else ITEMS
