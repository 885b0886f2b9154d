"""Snapshot of the Python state of modules: attributes, containers, closures, outer variables."""

from __future__ import annotations

import argparse
import operator
import sys
import types
from collections import ChainMap, OrderedDict, UserDict, UserList, defaultdict
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from chop.captured.state.code_search import (
    ATTRIBUTES,
    VARIABLES,
    first_line,
    is_own_file,
    names_in,
    variable_names,
)
from chop.captured.state.finder import (
    ALL,
    CONTENT,
    DEFAULTS,
    FIELDS,
    FUNCTION,
    ITEMS,
    KEYS,
    MEMBERS,
    SLOTS,
    Finder,
    Origin,
    reader,
)
from chop.captured.state.kinds import GENERATORS, StateKind, differing, get_kind, same, write_fields
from chop.captured.state.values import MISSING, PLAIN
from chop.private.modules import MODULES, PARAMETERS

Key = tuple[str, str]
"""Dotted path of a module and the name of one of its attributes."""

# Hooks, modes and buffers have separate checks; the rest are attributes that a forward changes.
_OWN_FIELDS = vars(nn.Module()).keys() - {PARAMETERS, MODULES}

# Objects of these types have no model state, or state that only they can copy.
_OPAQUE_HOMES = ("numpy", "sympy", "torch")
_BOOKKEEPING = ("chop.capture.", "chop.captured.")
"""Modules of capture metadata, which references everything that the code of the model reads."""
_HOLDERS = (
    *(types.SimpleNamespace, argparse.Namespace, UserDict, UserList, ChainMap),
    *(nn.Module, types.FunctionType),
)
"""Library types whose objects hold values of the user."""

# Models have thousands of plain and empty attributes, which need no search.
_PLAIN = frozenset(PLAIN)
_EMPTY = frozenset({dict, OrderedDict, list, set})

_Modules = Mapping[str, nn.Module]
_ANY_CODE = nn.Module.train.__code__
_CODE = (types.FunctionType, property, classmethod, staticmethod, type)


class _Saved(NamedTuple):
    """One object, its kind, its content, and the attribute that leads to it."""

    thing: Any
    kind: StateKind
    content: Any
    key: Key


class _Variable(NamedTuple):
    """A variable of a class or of a file in the snapshot.

    Args:
        home: the class, the Python module, or the globals of the file.
        part: the part of it that has the variable.
        name: its name.
        value: its value; `MISSING` if it has none.
        finder: a walk over the code that reads it.
    """

    home: Any
    part: str
    name: str
    value: Any
    finder: Finder

    def read(self) -> Any:
        """Returns its current value."""
        return reader(self.part)(self.home).get(self.name, MISSING)

    def write(self, value: Any) -> None:
        """Sets or deletes its value."""
        present, by_key = self.read(), self.part == KEYS
        if value is MISSING and present is not MISSING:
            (operator.delitem if by_key else delattr)(self.home, self.name)
        elif value is not present:
            (operator.setitem if by_key else setattr)(self.home, self.name, value)

    def where(self) -> str:
        """Returns `file:line` that sets it, or else the line, function or class that reads it."""
        codes = [function.__code__ for function in self.finder.functions]
        lines = (names_in(code, (*ATTRIBUTES, *VARIABLES)).get(self.name) for code in codes)
        if (line := next(filter(None, lines), None)) is not None:
            return line
        if isinstance(self.home, types.FunctionType):
            return first_line(self.home.__code__, self.name)
        if self.name in self.finder.names:
            return first_line(self.finder.names[self.name], self.name)
        return f"{self.home.__module__}.{self.home.__qualname__}"


class _StateFinder(Finder):
    """Finder of all values that code can set or fill, except stateless objects.

    Args:
        modules: modules of one class, by path.
        known: identities of values to skip.
        saved: receives the objects that can be restored as a whole.
    """

    def __init__(self, modules: _Modules, known: set[int], saved: list[_Saved]) -> None:
        super().__init__(modules, {}, known)
        self._saved = saved
        self._visited: set[nn.Module] = set()

    def find(self) -> None:
        super().find()
        # Code that was searched last may add attributes to classes that were visited first.
        path = next(iter(self.modules))
        for owner in [owner for owner, _ in self.owners.values() if isinstance(owner, type)]:
            self.add(owner, FIELDS, Origin(path, owner.__name__, _ANY_CODE))

    def begin(self) -> None:
        pass  # the set of visited objects does not depend on names

    def visit_module(self, path: str, module: nn.Module) -> None:
        if module not in self._visited:
            self._visited.add(module)
            for name, value in vars(module).items():
                if type(value) in _EMPTY and not value:
                    if id(value) not in self.known:
                        self.known.add(id(value))
                        self._save(value, ITEMS, (path, name))
                elif type(value) not in _PLAIN:
                    self.visit(value, Origin(path, name, _ANY_CODE))
            self.visit(type(module), Origin(path, "", _ANY_CODE))

    def visit(self, value: Any, origin: Origin) -> None:
        if type(value) in _PLAIN:
            return
        if type(value) in GENERATORS and id(value) not in self.known:
            self.known.add(id(value))
            self.add(value, ITEMS, origin, ALL)
        else:
            super().visit(value, origin)

    def add(
        self, owner: Any, part: str, origin: Origin, keys: Collection[Any] | None = None
    ) -> None:
        keys = self.keys(owner, part, {}, origin) if keys is None else keys
        if keys is not ALL:
            super().add(owner, part, origin, keys)
            return
        self._save(owner, part, (origin.path, origin.label))
        for value in () if part in (ITEMS, CONTENT) else reader(part)(owner).values():
            self.visit(value, origin)

    def _save(self, owner: Any, part: str, key: Key) -> None:
        kind = get_kind(owner, part)
        if kind is not None:
            self._saved.append(_Saved(owner, kind, kind.read(owner), key))

    def variables(self, function: types.FunctionType) -> Collection[str]:
        return {*variable_names(function.__code__), *names_in(function.__code__, VARIABLES)}

    def keys(
        self, owner: Any, part: str, now: Mapping[Any, Any], origin: Origin
    ) -> Collection[Any]:
        if part == FUNCTION:
            if owner.__closure__ and not _is_opaque_home(str(owner.__module__)):
                return ALL
            return DEFAULTS if owner in self.functions else ()
        if part not in (FIELDS, SLOTS):
            return () if part in MEMBERS.values() else ALL  # members are among the attributes
        if isinstance(owner, type):
            # Attributes that any method adds count as well.
            data = {n for n, x in vars(owner).items() if n[:2] != "__" and not isinstance(x, _CODE)}
            return data | (set().union(*self.stored.values()) - vars(owner).keys())
        if isinstance(owner, types.ModuleType):
            is_own = is_own_file(getattr(owner, "__file__", None) or "<frozen")
            return self.names.keys() if is_own else ()
        home = type(owner).__module__
        is_opaque = _is_opaque_home(home) or home.partition(".")[0] in sys.stdlib_module_names
        return ALL if isinstance(owner, _HOLDERS) or not is_opaque else ()


def _is_opaque_home(home: str) -> bool:
    return home.partition(".")[0] in _OPAQUE_HOMES or home.startswith(_BOOKKEEPING)


class PythonState:
    """Snapshot of the Python state of a model.

    It covers the attributes of modules, the contents of the containers, generators, closures and
    plain objects that they hold, and the variables of classes and files that their code uses.

    Args:
        model: the model.
        deep: False: only attributes of modules, and containers that are attributes.

    Attributes:
        tensors: the model's tensors by identity; its buffers if not `deep`.
    """

    def __init__(self, model: nn.Module, deep: bool = True) -> None:
        self.tensors: dict[int, Tensor] = {id(x): x for x in model.buffers()}
        self._modules = dict(model.named_modules())
        self._fields = {path: dict(vars(module)) for path, module in self._modules.items()}
        self._saved: list[_Saved] = []
        self._variables: defaultdict[Key, list[_Variable]] = defaultdict(list)
        if deep:
            self._find()
            return
        seen = set()
        for path, fields in self._fields.items():
            for name, value in fields.items():
                kind = get_kind(value, ITEMS)
                if kind is not None and id(value) not in seen:
                    seen.add(id(value))
                    self._saved.append(_Saved(value, kind, kind.read(value), (path, name)))

    def _find(self) -> None:
        known = {id(module) for module in self._modules.values()}
        by_class: defaultdict[type[nn.Module], dict[str, nn.Module]] = defaultdict(dict)
        for path, module in self._modules.items():
            by_class[type(module)][path] = module
        for instances in by_class.values():
            finder = _StateFinder(instances, known, self._saved)
            finder.find()
            self.tensors |= finder.tensors
            for (_, part), (owner, keys) in finder.owners.items():
                now = reader(part)(owner)
                for name, origin in keys.items():
                    variable = _Variable(owner, part, name, now.get(name, MISSING), finder)
                    for path in instances:
                        self._variables[path, origin.label].append(variable)

    def restore(self, keys: Collection[Key] | None = None) -> None:
        """Restores everything, or only these attributes and their contents."""
        for path, fields in self._fields.items():
            module = self._modules[path]
            if keys is None:
                write_fields(module, fields)
                continue
            for name in [name for at, name in keys if at == path]:
                if name in fields:
                    module.__dict__[name] = fields[name]
                else:
                    module.__dict__.pop(name, None)
        for key, variables in self._variables.items():
            for variable in variables if keys is None or key in keys else ():
                variable.write(variable.value)
        for saved in self._saved:
            if keys is None or saved.key in keys:
                saved.kind.write(saved.thing, saved.content)

    def value(self, key: Key) -> Any:
        """Returns the value of an attribute or a variable in the snapshot; None if it had none."""
        path, name = key
        if key in self._variables:
            return self._variables[key][0].value
        return self._fields.get(path, {}).get(name)

    def assign(self, key: Key, value: Any) -> None:
        """Sets an attribute or a variable."""
        path, name = key
        if key in self._variables:
            self._variables[key][0].write(value)
        else:
            self._modules[path].__dict__[name] = value

    def where(self, key: Key) -> str | None:
        """Returns `file:line` of the code that sets a variable outside of the modules; None for
        others.
        """
        return self._variables[key][0].where() if key in self._variables else None

    def changed(self) -> set[Key]:
        """Returns the attributes with other values or contents than in the snapshot."""
        changed = {
            (path, name)
            for path, fields in self._fields.items()
            for name in differing(fields, vars(self._modules[path]))
        }
        changed |= {
            key
            for key, variables in self._variables.items()
            if not all(same(variable.value, variable.read()) for variable in variables)
        }
        for saved in self._saved:
            if saved.key not in changed and not saved.kind.same(
                saved.content, saved.kind.read(saved.thing)
            ):
                changed.add(saved.key)
        return {key for key in changed if key[1] not in _OWN_FIELDS}
