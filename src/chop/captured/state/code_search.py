"""Search of a model's code: functions that it runs, names that it reads, attributes it sets."""

from __future__ import annotations

import contextlib
import dis
import functools
import os
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from torch import nn

from chop.captured.state.values import cell_content
from chop.captured.state.weak_cache import weakly_cached

_LIBRARIES = tuple(
    {str(Path(sysconfig.get_path(kind)).resolve()) for kind in ("stdlib", "purelib", "platlib")}
    | {str(Path(__file__).resolve().parents[1])}
)
ATTRIBUTES = ("STORE_ATTR", "DELETE_ATTR")
LOADED = ("LOAD_GLOBAL", "LOAD_NAME")
STORED = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF")
_BY_TEXT = {"getattr", "hasattr", "vars", "__dict__", "attrgetter", "environ", "getenv"}
"""Names in code whose texts name attributes or variables of the environment."""
_SETTERS = {"setattr", "register_buffer", "__setattr__"}
"""Names in code whose texts name attributes that it sets."""
_MODES = ("train", "eval")
"""Methods of modules that set what a forward goes by."""
_PICKLING = {
    *("__new__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__deepcopy__"),
    *("__repr__", "__str__", "__del__", "__init_subclass__", "__eq__", "__hash__"),
}
"""Special methods, and others like them, that no forward runs."""


_searches: ContextVar[dict[Any, CodeSearch] | None] = ContextVar("searches", default=None)


@contextlib.contextmanager
def searching_once() -> Iterator[None]:
    """Inside, and in blocks inside, the code of each class and function is searched once.

    A search holds the class and what its functions hold, and is let go with the outermost block.
    """
    if _searches.get() is not None:
        yield
        return
    token = _searches.set({})
    try:
        yield
    finally:
        _searches.reset(token)


def code_of(code: Any) -> CodeSearch:
    """The code that a function or the methods of a class run, see `CodeSearch`."""
    known = _searches.get()
    search = None if known is None else known.get(code)
    if search is None:
        search = CodeSearch()
        search.add(code)
        if known is not None:
            known[code] = search
    return search


class CodeSearch:
    """The functions that code runs. Libraries are left out, but for methods of their modules.

    Attributes:
        functions: those in files of the user's, by identity.
        classes: the classes of the user's whose methods it runs.
        names: the names in all of the code, each with the first code that has it.
        texts: the identifiers among its texts.
    """

    def __init__(self) -> None:
        self.functions: dict[int, types.FunctionType] = {}
        self.names: dict[str, types.CodeType] = {}
        self.texts: set[str] = set()
        self.classes: dict[type, None] = {}
        self._stored: dict[type | None, set[str]] = {None: set()}
        self._seen: set[int] = set()

    def add(self, code: Any) -> None:
        """Adds a function, or a class with the methods that are called by name or by syntax."""
        if isinstance(code, type):
            self.classes.setdefault(code)
        for function in functions_of(code):
            self._visit(function, None)
        size = -1
        while size != (size := len(self._seen) + len(self.classes)):
            for cls in list(self.classes):
                self._visit_methods(cls)

    def stored_on(self, cls: type) -> set[str]:
        """The attributes that functions and the methods of a class set; any method, on modules."""
        homes = self._stored if issubclass(cls, nn.Module) else (None, *cls.__mro__)
        return set().union(*(self._stored.get(home, ()) for home in homes))

    def _visit_methods(self, cls: type) -> None:
        for home in cls.__mro__:
            members = {} if is_opaque(home) else vars(home)
            special = {name for name in members if name[:2] == "__" and name not in _PICKLING}
            for name in {"forward", *_MODES, *special, *self.names} & members.keys():
                for function in functions_of(members[name]):
                    self._visit(function, home)

    def _visit(self, function: types.FunctionType, home: type | None) -> None:
        if id(function) in self._seen:
            return
        self._seen.add(id(function))
        # What decorates a function has it in its closure.
        for value in map(cell_content, function.__closure__ or ()):
            for inner in functions_of(value):
                self._visit(inner, home)
        code = function.__code__
        own = is_own_file(code.co_filename)
        is_module = home is not None and issubclass(home, nn.Module)
        if not own and not is_module:
            return
        names = code_names(code)
        if function.__name__ not in ("__init__", *_MODES):
            self.texts |= texts_in(code)
            for name in (*names, *(texts_in(code) if names & _BY_TEXT else ())):
                self.names.setdefault(name, code)
        elif is_module and function.__name__ not in _MODES:
            return
        if function.__name__ != "__init__":
            stored = self._stored.setdefault(home, set())
            stored.update(names_in(code, ATTRIBUTES), texts_in(code) if names & _SETTERS else ())
        if own:
            self.functions[id(function)] = function
            self._visit_globals(function, names)

    def _visit_globals(self, function: types.FunctionType, names: Iterable[str]) -> None:
        for value in (function.__globals__.get(name) for name in names):
            for inner in functions_of(value):
                self._visit(inner, None)
            cls = value if isinstance(value, type) else type(value)
            # Modules of a model are asked themselves.
            if is_own_class(cls) and not issubclass(cls, nn.Module):
                self.classes.setdefault(cls)


_WRAPPERS = (
    *(property, classmethod, staticmethod, functools.partial, types.MethodType),
    *(functools.cached_property, type(functools.cache(len))),
)


def is_opaque(cls: type) -> bool:
    """Returns whether a class is of Python, torch or NumPy, which keep no values of a model."""
    home = cls.__module__.partition(".")[0]
    return home in ("torch", "numpy", "sympy", "chop") or home in sys.stdlib_module_names


def is_own_class(cls: type) -> bool:
    """Returns whether a class is the user's: of the file of no library."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return not is_opaque(cls) if file is None else is_own_file(file)


def functions_of(value: Any) -> Iterator[types.FunctionType]:
    """The Python functions that a function, a method, a property or a wrapper consists of."""
    if isinstance(value, types.FunctionType):
        yield value
    elif isinstance(value, _WRAPPERS):
        for name in ("__func__", "__wrapped__", "func", "fget", "fset"):
            yield from functions_of(getattr(value, name, None))


@functools.lru_cache(maxsize=4096)
def is_own_file(filename: str) -> bool:
    """Returns whether a file of Python is the user's."""
    # A virtual environment may be reached by a link.
    frozen = filename.startswith("<frozen")
    return not frozen and not os.path.realpath(filename).startswith(_LIBRARIES)


@weakly_cached
def names_in(code: types.CodeType, by: tuple[str, ...] = ()) -> Mapping[str, str]:
    """The names in code, of these instructions or of all, each with the line of the first."""
    numbers = {dis.opmap[each] for each in by}
    sources: dict[str, str] = {}
    for part in _parts(code):
        # Disassembly is slow, and most code has none of these.
        if by and numbers.isdisjoint(part.co_code[::2]):
            continue
        line = part.co_firstlineno
        for step in dis.get_instructions(part):
            line = step.positions.lineno if step.positions and step.positions.lineno else line
            if isinstance(step.argval, str) and (not by or step.opname in by):
                sources.setdefault(step.argval, f"{part.co_filename}:{line}")
    return sources


@weakly_cached
def code_names(code: types.CodeType) -> frozenset[str]:
    """The names of variables of files, and of attributes, in code."""
    return frozenset(name for part in _parts(code) for name in part.co_names)


@weakly_cached
def texts_in(code: types.CodeType) -> frozenset[str]:
    """The identifiers among the texts in code."""
    constants = [x for part in _parts(code) for x in part.co_consts]
    constants += [x for nested in constants if isinstance(nested, tuple) for x in nested]
    return frozenset(x for x in constants if isinstance(x, str) and x.isidentifier())


def variable_names(code: types.CodeType) -> set[str]:
    """The names of variables of files in code."""
    # Attributes are among the names of code, and may be called as a variable of the file.
    return {*names_in(code, LOADED), *(texts_in(code) if "globals" in code_names(code) else ())}


def first_line(code: types.CodeType, name: str) -> str:
    """`file:line` of the first instruction that has a name or a text."""
    return names_in(code).get(name, f"{code.co_filename}:{code.co_firstlineno}")


def _parts(code: types.CodeType) -> Iterator[types.CodeType]:
    """Code and the functions, comprehensions and classes that are written in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _parts(inner)
