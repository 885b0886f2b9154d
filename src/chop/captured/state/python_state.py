"""Snapshot of the Python state of modules: attributes, containers, closures, variables outside."""

from __future__ import annotations

import operator
import pickle
import random
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from chop.captured.state.code_search import (
    ATTRIBUTES,
    CodeSearch,
    code_names,
    code_of,
    first_line,
    is_own_class,
    names_in,
    searching_once,
)
from chop.captured.state.values import MAX_ITEMS, MISSING, cell_content
from chop.captured.state.weak_cache import weakly_cached
from chop.private.modules import MODULES, PARAMETERS

Key = tuple[str, str]
"""The dotted path of a module and the name of one of its attributes."""

_MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
_PLAIN = (bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)

# Hooks, modes and buffers have rules of their own; what is left is what a forward would change.
_OWN_FIELDS = vars(nn.Module()).keys() - {PARAMETERS, MODULES}

# Objects of these have no state of a model, or a state that only they know how to copy.
_OPAQUE_HOMES = ("numpy", "sympy", "torch")
_BOOKKEEPING = ("chop.capture.", "chop.captured.")
"""Homes of what a capture carries along; it leads to all that the code of the model reads."""

_GLOBALS = ("STORE_GLOBAL", "DELETE_GLOBAL")
_CODE = (types.FunctionType, property, classmethod, staticmethod, type)


class _StateKind(NamedTuple):
    """How the content of a kind of object is read, put back and compared."""

    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None]
    same: Callable[[Any, Any], bool]


def _same(before: Any, after: Any) -> bool:
    if before is after:
        return True
    return type(before) is type(after) and isinstance(before, _PLAIN) and bool(before == after)


def differing(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> list[Any]:
    """The names whose values are not the same in two states."""
    missing = object()
    return [
        name
        for name in before.keys() | after.keys()
        if not _same(before.get(name, missing), after.get(name, missing))
    ]


def _same_mappings(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> bool:
    return not differing(before, after)


def _same_sequences(before: list[Any], after: list[Any]) -> bool:
    return len(before) == len(after) and all(map(_same, before, after))


def _same_draws(before: Any, after: Any) -> bool:
    if isinstance(before, Tensor):
        return torch.equal(before, after)
    return pickle.dumps(before) == pickle.dumps(after)


def _write_mapping(target: dict[Any, Any], content: Mapping[Any, Any]) -> None:
    target.clear()
    target.update(content)


def _write_sequence(target: Any, content: list[Any]) -> None:
    target.clear()
    target.extend(content)


def _write_fields(target: Any, content: Mapping[str, Any]) -> None:
    fields = vars(target)
    for name in fields.keys() - content.keys():
        del fields[name]
    fields.update(content)


def _write_set(target: set[Any], content: set[Any]) -> None:
    target.clear()
    target.update(content)


def _of_generator(read: str, write: str) -> _StateKind:
    def put_back(draws: Any, state: Any) -> None:
        operator.methodcaller(write, state)(draws)

    return _StateKind(operator.methodcaller(read), put_back, _same_draws)


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


_CELLS = _StateKind(_read_cells, _write_cells, _same_sequences)
_FIELDS = _StateKind(lambda thing: dict(vars(thing)), _write_fields, _same_mappings)
_MAPPING = _StateKind(dict, _write_mapping, _same_mappings)
_SEQUENCE = _StateKind(list, _write_sequence, _same_sequences)
_SET = _StateKind(set, _write_set, operator.eq)
_GENERATORS: Mapping[type, _StateKind] = {
    random.Random: _of_generator("getstate", "setstate"),
    np.random.RandomState: _of_generator("get_state", "set_state"),
    torch.Generator: _of_generator("get_state", "set_state"),
    np.random.Generator: _StateKind(
        lambda draws: draws.bit_generator.state, _write_draws, _same_draws
    ),
}


def _kind_of(thing: Any) -> _StateKind | None:
    cls = type(thing)
    if cls in _MAPPINGS:
        return _MAPPING
    if cls in (list, deque):
        return _SEQUENCE
    if cls is set:
        return _SET
    if cls in _GENERATORS:
        return _GENERATORS[cls]
    if isinstance(thing, nn.Module):
        return _FIELDS
    if isinstance(thing, types.FunctionType):
        opaque = str(thing.__module__).partition(".")[0] in _OPAQUE_HOMES
        return _CELLS if thing.__closure__ and not opaque else None
    if isinstance(thing, type | Mapping) or not hasattr(thing, "__dict__"):
        return None
    home = cls.__module__.partition(".")[0]
    opaque = home in _OPAQUE_HOMES or home in sys.stdlib_module_names
    opaque = opaque or cls.__module__.startswith(_BOOKKEEPING)
    return None if opaque and cls is not types.SimpleNamespace else _FIELDS


@dataclass
class _Saved:
    """One object, its kind, its content, and the attribute under which it was found."""

    thing: Any
    kind: _StateKind
    content: Any
    key: Key


@dataclass(frozen=True, eq=False)
class Variable:
    """A variable of a class or of a file.

    Args:
        home: the class, or the globals of the file.
        name: its name.
        where: `file:line` that sets it, or else the one that reads it.
    """

    home: Any
    name: str
    where: str

    @property
    def label(self) -> str:
        """Its name for messages."""
        return f"{self.home.__name__}.{self.name}" if isinstance(self.home, type) else self.name

    def read(self) -> Any:
        """Its value; `MISSING` where there is none."""
        names = vars(self.home) if isinstance(self.home, type) else self.home
        return names.get(self.name, MISSING)

    def write(self, value: Any) -> None:
        """Gives it a value, or takes it away."""
        is_class, present = isinstance(self.home, type), self.read()
        if value is MISSING and present is not MISSING:
            (delattr if is_class else operator.delitem)(self.home, self.name)
        elif value is not present:
            (setattr if is_class else operator.setitem)(self.home, self.name, value)


@weakly_cached
def _variables(search: CodeSearch) -> tuple[Variable, ...]:
    """The variables of files and classes that code can set or fill."""
    variables: dict[tuple[int, str], Variable] = {}
    stored: dict[str, str] = {}
    for function in search.functions.values():
        code, home = function.__code__, function.__globals__
        stored |= names_in(code, ATTRIBUTES)
        settable = names_in(code, _GLOBALS)
        for name in code_names(code):
            if name in settable or _has_content(home.get(name)):
                where = settable.get(name) or first_line(code, name)
                variables.setdefault((id(home), name), Variable(home, name, where))
    for cls in filter(is_own_class, (home for each in search.classes for home in each.__mro__)):
        for name, value in vars(cls).items():
            is_set = name in stored and not isinstance(value, _CODE)
            if is_set or (_is_container(value) and name[:2] != "__"):
                where = stored.get(name) or f"{cls.__module__}.{cls.__qualname__}"
                variables.setdefault((id(cls), name), Variable(cls, name, where))
    return tuple(variables.values())


def _is_container(value: Any) -> bool:
    return isinstance(value, dict | list | set | Tensor) or type(value).__name__ == "deque"


def _has_content(value: Any) -> bool:
    return _is_container(value) or (hasattr(value, "__dict__") and is_own_class(type(value)))


class PythonState:
    """A snapshot of the Python state of a model.

    It covers the attributes of modules, what is inside the containers, generators, closures and
    plain objects that they hold, and the variables of classes and files that their code uses.

    Args:
        model: the model.
        deep: False: only attributes of modules, and containers that are attributes.

    Attributes:
        tensors: by identity, the tensors that the model holds; its buffers where not `deep`.
    """

    def __init__(self, model: nn.Module, deep: bool = True) -> None:
        self._deep = deep
        self.tensors: dict[int, Tensor] = {id(x): x for x in model.buffers()}
        self._modules = dict(model.named_modules())
        self._fields = {path: dict(vars(module)) for path, module in self._modules.items()}
        self._saved: dict[int, _Saved] = {}
        self._variables: dict[Key, tuple[Variable, Any]] = {}
        self._searched: set[int] = set()
        with searching_once():
            self._search()

    def _search(self) -> None:
        known = {id(module) for module in self._modules.values()}
        for path, fields in self._fields.items():
            for name, value in fields.items():
                self._visit(value, (path, name), known)
        for path, module in self._modules.items() if self._deep else ():
            self._visit_outside(path, type(module), known)

    def _visit_outside(self, path: str, code: Any, known: set[int]) -> None:
        outside = code_of(code)
        # What these reach is in `outside` already.
        self._searched.update(outside.functions)
        for variable in _variables(outside):
            key, value = (path, variable.label), variable.read()
            self._variables[key] = (variable, value)
            self._visit(value, key, known)
        for function in outside.functions.values():
            key, fields = (path, function.__name__), vars(function)
            self._visit(function, key, known)
            if fields:
                self._saved[id(fields)] = _Saved(function, _FIELDS, dict(fields), key)
            self._visit(function.__defaults__, key, known)
            self._visit(tuple((function.__kwdefaults__ or {}).values()), key, known)

    def _visit(self, thing: Any, key: Key, known: set[int]) -> None:
        if thing is None or isinstance(thing, _PLAIN):
            return
        if isinstance(thing, Tensor):
            if self._deep:
                self.tensors[id(thing)] = thing
        elif isinstance(thing, tuple):
            for item in thing:
                self._visit(item, key, known)
        elif id(thing) not in known and (kind := _kind_of(thing)) is not None:
            if kind in (_FIELDS, _CELLS) and not self._deep:
                return
            known.add(id(thing))
            content = kind.read(thing)
            self._saved[id(thing)] = _Saved(thing, kind, content, key)
            for item in _items(content) if self._deep else ():
                self._visit(item, key, known)
        if self._deep and isinstance(thing, types.FunctionType) and id(thing) not in self._searched:
            self._searched.add(id(thing))
            self._visit_outside(key[0], thing, known)

    def restore(self, keys: Collection[Key] | None = None) -> None:
        """Puts everything back, or only these attributes and what they hold."""
        for path, fields in self._fields.items():
            module = self._modules[path]
            if keys is None:
                _write_fields(module, fields)
                continue
            for name in [name for at, name in keys if at == path]:
                if name in fields:
                    module.__dict__[name] = fields[name]
                else:
                    module.__dict__.pop(name, None)
        for key, (variable, value) in self._variables.items():
            if keys is None or key in keys:
                variable.write(value)
        for saved in self._saved.values():
            if keys is None or saved.key in keys:
                saved.kind.write(saved.thing, saved.content)

    def value(self, key: Key) -> Any:
        """The value of an attribute or a variable in the snapshot; None where it had none."""
        path, name = key
        if key in self._variables:
            return self._variables[key][1]
        return self._fields.get(path, {}).get(name)

    def assign(self, key: Key, value: Any) -> None:
        """Gives an attribute or a variable a value."""
        path, name = key
        if key in self._variables:
            self._variables[key][0].write(value)
        else:
            self._modules[path].__dict__[name] = value

    def where(self, key: Key) -> str | None:
        """`file:line` of the code that sets a variable outside of the modules; None for others."""
        return self._variables[key][0].where if key in self._variables else None

    def changed(self) -> set[Key]:
        """The attributes that are not what they were, or hold something else."""
        found = {
            (path, name)
            for path, fields in self._fields.items()
            for name in differing(fields, vars(self._modules[path]))
        }
        found |= {k for k, (var, value) in self._variables.items() if not _same(value, var.read())}
        for saved in self._saved.values():
            if saved.key not in found and not saved.kind.same(
                saved.content, saved.kind.read(saved.thing)
            ):
                found.add(saved.key)
        return {key for key in found if key[1] not in _OWN_FIELDS}


def _items(content: Any) -> Iterator[Any]:
    if isinstance(content, Mapping | list | set) and len(content) <= MAX_ITEMS:
        yield from content.values() if isinstance(content, Mapping) else content
