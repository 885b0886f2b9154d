"""Outer state: variables of classes and files that the code of a model's modules reads or sets."""

from __future__ import annotations

import dis
import functools
import os
import sysconfig
import types
from collections.abc import Hashable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

MISSING = object()
"""The value of a variable that is not there."""

_LIBRARIES = tuple(
    {str(Path(sysconfig.get_path(kind)).resolve()) for kind in ("stdlib", "purelib", "platlib")}
    | {str(Path(__file__).resolve().parents[1])}
)
_NUMBERS = (bool, int, float, complex, str, bytes)
_GLOBALS = ("STORE_GLOBAL", "DELETE_GLOBAL")
_ATTRIBUTES = ("STORE_ATTR", "DELETE_ATTR")


@dataclass(frozen=True, eq=False)
class Variable:
    """A variable of a class or of a file.

    Args:
        home: the class, or the globals of the file.
        name: its name.
        where: `file:line` that sets it, or else the one that reads it.
    """

    home: type | MutableMapping[str, Any]
    name: str
    where: str

    @property
    def label(self) -> str:
        """What to call it."""
        return f"{self.home.__name__}.{self.name}" if isinstance(self.home, type) else self.name

    def read(self) -> Any:
        """Its value; `MISSING` where there is none."""
        names = vars(self.home) if isinstance(self.home, type) else self.home
        return names.get(self.name, MISSING)

    def write(self, value: Any) -> None:
        """Gives it a value, or takes it away."""
        if value is self.read():
            return
        if isinstance(self.home, type):
            if value is MISSING:
                delattr(self.home, self.name)
            else:
                setattr(self.home, self.name, value)
        elif value is MISSING:
            del self.home[self.name]
        else:
            self.home[self.name] = value


@dataclass(frozen=True)
class OuterState:
    """What code can keep outside of the objects that it is given.

    Args:
        variables: of its classes and files.
        functions: of the same, that it consists of or calls.
    """

    variables: tuple[Variable, ...]
    functions: tuple[types.FunctionType, ...]


@functools.cache
def outer_state(code: Any) -> OuterState:
    """What a function or the methods of a class, without libraries, can keep outside of objects."""
    found = _Search()
    for each in code.__mro__ if isinstance(code, type) else functions_of(code):
        found.visit_class(each) if isinstance(each, type) else found.visit_function(each)
    return OuterState(tuple(found.variables.values()), tuple(found.functions.values()))


class _Search:
    def __init__(self) -> None:
        self.variables: dict[tuple[int, str], Variable] = {}
        self.functions: dict[int, types.FunctionType] = {}
        self._classes: set[type] = set()

    def visit_class(self, cls: type) -> None:
        methods = [f for value in vars(cls).values() for f in functions_of(value)]
        if cls in self._classes or not any(map(is_own, methods)):
            return
        self._classes.add(cls)
        for method in methods:
            self.visit_function(method)
        for method in methods:
            self._add_attributes(cls, method)
        for name, value in vars(cls).items():
            if _is_container(value) and not name.startswith("__"):
                self._add(cls, name, _line(methods[0].__code__))

    def visit_function(self, function: types.FunctionType) -> None:
        if id(function) in self.functions or not is_own(function):
            return
        self.functions[id(function)] = function
        stored = names_in(function.__code__, _GLOBALS)
        for name in _names(function.__code__):
            value = function.__globals__.get(name, MISSING)
            for inner in functions_of(value):
                self.visit_function(inner)
            if isinstance(value, type):
                self._add_attributes(value, function)
                # Modules of a model are asked themselves.
                if not issubclass(value, nn.Module):
                    self.visit_class(value)
            elif (value is MISSING or isinstance(value, _NUMBERS)) and name in stored:
                self._add(function.__globals__, name, stored[name])
            elif _is_container(value) or _is_object(value):
                self._add(function.__globals__, name, _first_line(function.__code__, name))

    def _add_attributes(self, cls: type, function: types.FunctionType) -> None:
        for name, where in names_in(function.__code__, _ATTRIBUTES).items():
            if name in vars(cls) and not isinstance(vars(cls)[name], _CODE):
                self._add(cls, name, where)

    def _add(self, home: Any, name: str, where: str) -> None:
        self.variables.setdefault((id(home), name), Variable(home, name, where))


_CODE = (types.FunctionType, property, classmethod, staticmethod, type)


def _is_container(value: Any) -> bool:
    return isinstance(value, dict | list | set | Tensor) or type(value).__name__ == "deque"


def _is_object(value: Any) -> bool:
    return hasattr(value, "__dict__") and _has_own_methods(cast(Hashable, type(value)))


@functools.cache
def _has_own_methods(cls: Any) -> bool:
    return any(is_own(f) for member in vars(cls).values() for f in functions_of(member))


def functions_of(value: Any) -> Iterator[types.FunctionType]:
    """The Python functions that a function, a method or a property of a class consists of."""
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    candidates = (value.fget, value.fset) if isinstance(value, property) else (value,)
    yield from (f for f in candidates if isinstance(f, types.FunctionType))


def is_own(function: types.FunctionType) -> bool:
    """Whether a function is the user's: in the file of no library."""
    return is_own_file(function.__code__.co_filename)


@functools.cache
def is_own_file(filename: str) -> bool:
    """Whether a file of Python is the user's."""
    # A virtual environment may be reached by a link.
    frozen = filename.startswith("<frozen")
    return not frozen and not os.path.realpath(filename).startswith(_LIBRARIES)


@functools.cache
def names_in(code: types.CodeType, by: tuple[str, ...] = ()) -> Mapping[str, str]:
    """The names in code, of these instructions or of all, each with the line of the first."""
    numbers = {dis.opmap[each] for each in by}
    found: dict[str, str] = {}
    for part in _parts(code):
        # Disassembly is slow, and most code has none of these.
        if by and numbers.isdisjoint(part.co_code[::2]):
            continue
        for name, operation, where in _instructions(part):
            if not by or operation in by:
                found.setdefault(name, where)
    return found


@functools.cache
def _parts(code: types.CodeType) -> tuple[types.CodeType, ...]:
    """Code and the functions, comprehensions and classes that are written in it."""
    inner = (_parts(each) for each in code.co_consts if isinstance(each, types.CodeType))
    return code, *(part for parts in inner for part in parts)


@functools.cache
def _names(code: types.CodeType) -> frozenset[str]:
    """The names of variables of files, and of attributes, in code."""
    return frozenset(name for part in _parts(code) for name in part.co_names)


def _first_line(code: types.CodeType, name: str) -> str:
    """`file:line` of the first instruction that has a name."""
    steps = (step for part in _parts(code) for step in _instructions(part))
    return next((where for each, _, where in steps if each == name), _line(code))


def _instructions(code: types.CodeType) -> Iterator[tuple[str, str, str]]:
    """Names, operations and `file:line` of the instructions that have a name."""
    line = code.co_firstlineno
    for step in dis.get_instructions(code):
        line = step.positions.lineno if step.positions and step.positions.lineno else line
        if isinstance(step.argval, str):
            yield step.argval, step.opname, f"{code.co_filename}:{line}"


def _line(code: types.CodeType) -> str:
    return f"{code.co_filename}:{code.co_firstlineno}"
