"""Code analysis: functions of a value, names that code reads, attributes that it sets."""

from __future__ import annotations

import dis
import functools
import os
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from chop.captured.state.weak_cache import weak_cache

_LIBRARIES = tuple(
    {str(Path(sysconfig.get_path(kind)).resolve()) for kind in ("stdlib", "purelib", "platlib")}
    | {str(Path(__file__).resolve().parents[1])}
)
ATTRIBUTES = ("STORE_ATTR", "DELETE_ATTR")
VARIABLES = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF")
"""Instructions that set attributes, and variables outside of a function."""
_LOADED = ("LOAD_GLOBAL", "LOAD_NAME")
_SETTERS = {"setattr", "register_buffer", "__setattr__"}
"""Functions whose string arguments name attributes that they set."""
_WRAPPERS = (
    *(property, classmethod, staticmethod, functools.partial, types.MethodType),
    *(functools.cached_property, type(functools.cache(len))),
)


def is_opaque(cls: type) -> bool:
    """Returns whether a class belongs to Python, torch or NumPy."""
    home = cls.__module__.partition(".")[0]
    return home in ("torch", "numpy", "sympy", "chop") or home in sys.stdlib_module_names


def is_own_class(cls: type) -> bool:
    """Returns whether a class is the user's, outside of any library."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return not is_opaque(cls) if file is None else is_own_file(file)


def list_functions(value: Any) -> Iterator[types.FunctionType]:
    """Returns the Python functions of a function, a method, a property or a wrapper."""
    if isinstance(value, types.FunctionType):
        yield value
    elif isinstance(value, _WRAPPERS):
        for name in ("__func__", "__wrapped__", "func", "fget", "fset"):
            yield from list_functions(getattr(value, name, None))


@functools.lru_cache(maxsize=4096)
def is_own_file(filename: str) -> bool:
    """Returns whether a Python file is the user's."""
    # The path of a virtual environment may be a link.
    frozen = filename.startswith("<frozen")
    return not frozen and not os.path.realpath(filename).startswith(_LIBRARIES)


@weak_cache
def names_in(code: types.CodeType, by: tuple[str, ...] = ()) -> Mapping[str, str]:
    """Returns the names in code, of these instructions or of all, each with its first line."""
    numbers = {dis.opmap[each] for each in by}
    sources: dict[str, str] = {}
    for part in _parts(code):
        # Disassembly is slow, and most code contains none of these names.
        if by and numbers.isdisjoint(part.co_code[::2]):
            continue
        line = part.co_firstlineno
        for step in dis.get_instructions(part):
            line = step.positions.lineno if step.positions and step.positions.lineno else line
            if isinstance(step.argval, str) and (not by or step.opname in by):
                sources.setdefault(step.argval, f"{part.co_filename}:{line}")
    return sources


@weak_cache
def code_names(code: types.CodeType) -> frozenset[str]:
    """Returns the names of global variables and attributes in code."""
    return frozenset(name for part in _parts(code) for name in part.co_names)


@weak_cache
def texts_in(code: types.CodeType) -> frozenset[str]:
    """Returns the identifiers among the string constants in code."""
    constants = [x for part in _parts(code) for x in part.co_consts]
    constants += [x for nested in constants if isinstance(nested, tuple) for x in nested]
    return frozenset(x for x in constants if isinstance(x, str) and x.isidentifier())


def stored_names(code: types.CodeType) -> set[str]:
    """Returns the names of attributes that code sets."""
    return {*names_in(code, ATTRIBUTES), *(texts_in(code) if code_names(code) & _SETTERS else ())}


def variable_names(code: types.CodeType) -> set[str]:
    """Returns the names of global variables that code reads."""
    # The names of code include attributes, which may have the name of a global variable.
    return {*names_in(code, _LOADED), *(texts_in(code) if "globals" in code_names(code) else ())}


def first_line(code: types.CodeType, name: str) -> str:
    """Returns `file:line` of the first instruction with a name or string."""
    return names_in(code).get(name, f"{code.co_filename}:{code.co_firstlineno}")


def _parts(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yields code and the functions, comprehensions and classes nested in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _parts(inner)
