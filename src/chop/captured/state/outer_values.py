"""Values that a model's code reads from attributes, modules, closures, objects and environment.

A graph holds them as constants. A call warns where one of them is no longer what it was.
"""

from __future__ import annotations

import os
import sys
import types
import warnings
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from chop.captured.module_tree import member_at
from chop.captured.state.code_search import (
    CodeSearch,
    code_names,
    functions_of,
    is_opaque,
    is_own_class,
    names_in,
    texts_in,
)
from chop.captured.state.places import (
    CONTENT,
    CONTEXT,
    COPY,
    FIELDS,
    FUNCTION,
    ITEMS,
    KEYS,
    MEMBERS,
    OF_FUNCTIONS,
    SLOTS,
    Found,
    Places,
    reader,
)
from chop.captured.state.values import (
    CONTAINERS,
    MAX_ITEMS,
    MISSING,
    PLAIN,
    content,
    fields_of,
    parts_of,
    slots_of,
)
from chop.errors import enumerate_names

KEY = "_outer_values"
"""Where a captured module keeps them."""

_OWN_FIELDS = frozenset(vars(nn.Module()))
_ARGUMENTS = {"use_cache"}
"""Settings that a graph follows by its arguments."""
_SAVED = {"dtype", "torch_dtype", "architectures", "quantization_config"}
"""Settings of a configuration of transformers that saving its model writes."""
_MAX_NAMES = 4
_LOADED = ("LOAD_GLOBAL", "LOAD_NAME")
_STORED = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF")

_Modules = Mapping[str, nn.Module]
_Attributes = Collection[tuple[str, str]]


class OuterValueWarning(UserWarning):
    """A value that a model's code reads has changed since the model was captured."""


class OuterValues:
    """The values that the code of a model reads, as they were at capture.

    Copies of a graph share them; a pickle has none, since another process starts with others.

    Args:
        modules: the modules by path whose Python was recorded.
        changed: attributes, by path and name, that a forward changes itself.
    """

    def __init__(self, modules: _Modules | None = None, changed: _Attributes = ()) -> None:
        self._fields: dict[str, dict[str, Any]] = {}
        self._flags: dict[str, bool] = {}
        found: Found = {}
        names: set[str] = set()
        by_class: defaultdict[type[nn.Module], dict[str, nn.Module]] = defaultdict(dict)
        for path, module in (modules or {}).items():
            by_class[type(module)][path] = module
        for cls, instances in by_class.items():
            if issubclass(cls, torch.jit.ScriptModule):
                continue
            reader = _Reader(cls, found, changed)
            reader.find(instances)
            names |= reader.names.keys()
            own = reader.names_of(cls) - _OWN_FIELDS
            for path, module in instances.items():
                self._fields[path] = {n: content(_static(module, n), False, own) for n in own}
                if "requires_grad" in own:
                    parameters = module.named_parameters(path)
                    self._flags |= {name: x.requires_grad for name, x in parameters}
        self._places = Places(found, names)

    def warn(self, captured: nn.Module, scopes: Iterable[tuple[str, nn.Module]]) -> None:
        """Warns of what has changed.

        Args:
            captured: the module whose graph holds the values.
            scopes: modules of its, by path, that may have got attributes, which have no effect.
        """
        for text in self._changes(captured, scopes):
            text += ": the graph keeps what it computed then; capture the model again"
            warnings.warn(text, OuterValueWarning, stacklevel=4)

    def _changes(
        self, captured: nn.Module, scopes: Iterable[tuple[str, nn.Module]]
    ) -> Iterator[str]:
        yield from self._places.changes()
        for path, scope in scopes:
            before, fields = self._fields.get(path, {}), vars(scope)
            for name in () if before.keys().isdisjoint(fields) else before.keys() & fields.keys():
                if content(fields[name], False, before) != before[name]:
                    label = f"{path or 'the model'}.{name}"
                    yield f"{label} was set on the graph, which has its value as a constant"
        flags = [n for n, x in self._flags.items() if _requires_grad(captured, n) not in (x, None)]
        if flags:
            names = enumerate_names(flags, _MAX_NAMES)
            yield f"requires_grad, which the model's code reads, has changed for {names}"

    def __deepcopy__(self, memo: Any) -> OuterValues:
        return self

    def __reduce__(self) -> Any:
        return OuterValues, ()


class _Reader(CodeSearch):
    """Finds what the forward of a module class reads.

    Args:
        cls: the class.
        found: takes what is found, by owner and part.
        changed: attributes, by path and name, that a forward changes itself.
    """

    def __init__(self, cls: type[nn.Module], found: Found, changed: _Attributes) -> None:
        super().__init__()
        self.add(cls)
        self._found, self._changed = found, changed
        self._set_elsewhere = {name.rpartition(".")[2] for _, name in changed}
        self._known: set[int] = set()
        self._names: dict[type, set[str]] = {}
        self._code = next(iter(self.names.values()), nn.Module.train.__code__)

    def find(self, modules: _Modules) -> None:
        """Finds what the code reads of modules, and of all that it reaches from there."""
        size = -1
        # Objects that are reached bring code of their own, with further names.
        while size != (size := len(self.names) + len(self.functions)):
            self._known.clear()
            self._names.clear()
            for path, module in modules.items():
                self._module(path, module)
            for function in list(self.functions.values()):
                self._function(function)

    def names_of(self, owner: Any) -> set[str]:
        """The names in the code that it does not set itself on objects of the owner's class."""
        cls = owner if isinstance(owner, type) else type(owner)
        if cls not in self._names:
            self._names[cls] = self.names.keys() - _ARGUMENTS - self.stored_on(cls)
        return self._names[cls]

    def _module(self, path: str, module: nn.Module) -> None:
        label, fields = path or type(module).__name__, vars(module)
        names = self.names_of(module) - _OWN_FIELDS - {n for p, n in self._changed if p == path}
        own = is_own_class(type(module))
        called = names | {"forward"}
        fields_read = _attributes(module, called) if own else names & fields.keys()
        self._add(module, FIELDS, fields_read, label)
        for name, part in MEMBERS.items():
            # Sequential and the like go by all of their children.
            if is_opaque(type(module)):
                self._add(module, ITEMS.format(part), [...], label)
            else:
                self._add(module, part, names if own else names & fields[name].keys(), label)
        self._class(type(module))

    def _class(self, cls: type) -> None:
        for home in filter(is_own_class, cls.__mro__):
            names = self.names_of(home) | ({"forward"} if issubclass(home, nn.Module) else set())
            self._add(
                home, FIELDS, names if home is cls else names & vars(home).keys(), home.__name__
            )

    def _function(self, function: types.FunctionType) -> None:
        code, label = function.__code__, function.__name__
        settable = {*names_in(code, _STORED), *self._set_elsewhere, "__class__"}
        # Attributes are among the names of code, and may be called as a variable of the file.
        texts = texts_in(code) if "globals" in code_names(code) else ()
        names = {*names_in(code, _LOADED), *texts} & function.__globals__.keys()
        self._add(function.__globals__, KEYS, names - settable, "")
        self._add(function, FUNCTION, {*code.co_freevars} - settable, "")
        self._add(function, FUNCTION, OF_FUNCTIONS, label)
        self._add(function, FIELDS, self.names_of(function) & vars(function).keys(), label)
        for name in names_in(code, ("IMPORT_NAME",)):
            self._look_into(sys.modules.get(name), (name, code))
        if {"environ", "getenv"} & code_names(code):
            self._add(os.environ, KEYS, texts_in(code), "os.environ")

    def _add(self, owner: Any, part: str, keys: Collection[Any], label: str) -> None:
        now = reader(part)(owner)
        _, known = self._found.setdefault((id(owner), part), (owner, {}))
        for key in keys:
            code = self.names.get(key, self._code)
            named = f"{label}['{key}']" if owner is os.environ else f"{label}.{key}"
            known.setdefault(key, (label if key is ... else named if label else key, code))
            if key in now:
                self._look_into(now[key], known[key])

    def _look_into(self, value: Any, described: tuple[str, types.CodeType]) -> None:
        if isinstance(value, (*PLAIN, Tensor)) or value is MISSING or id(value) in self._known:
            return
        self._known.add(id(value))
        label, names = described[0], self.names_of(value)
        if any(functions_of(value)):
            self.add(value)
        if isinstance(value, type):
            self._class(value)
        elif isinstance(value, nn.Module | types.ModuleType):
            self._add(value, FIELDS, names & vars(value).keys() - _OWN_FIELDS, label)
        elif isinstance(value, dict) and hasattr(type(value), "__getattr__"):
            self._add(value, COPY, names | self.texts, label)
        elif isinstance(value, (*CONTAINERS, np.ndarray, ContextVar)):
            part = _part_of(value)
            self._found[id(value), part] = (value, {... if part == ITEMS else 0: described})
        if (fields := fields_of(value)) is not None and not isinstance(value, types.FunctionType):
            if is_own_class(type(value)):
                self.add(type(value))
                self._class(type(value))
            # Where attributes are looked up in a mapping, only those that the code names count.
            tables = fields.values() if hasattr(type(value), "__getattr__") else ()
            for table in (x for x in tables if isinstance(x, dict)):
                self._known.add(id(table))
                self._add(table, COPY, names | self.texts, label)
            own = is_own_class(type(value)) or is_opaque(type(value))
            part = SLOTS if slots_of(type(value)) else FIELDS
            read = _attributes(value, names) if own else names & fields.keys() - _SAVED
            self._add(value, part, read, label)
        for part in () if isinstance(value, types.FunctionType) else parts_of(value, ()) or ():
            self._look_into(part, described)


def _part_of(value: Any) -> str:
    """The items of a container, or all at once where it makes them when it is asked."""
    if isinstance(value, ContextVar):
        return CONTEXT
    makes = isinstance(value, np.ndarray | array | bytearray)
    return CONTENT if makes or len(value) > MAX_ITEMS else ITEMS


def _attributes(owner: Any, names: Collection[str]) -> set[str]:
    """The names that are attributes of an object itself, or that could become so."""
    fields = fields_of(owner) if not isinstance(owner, nn.Module) else vars(owner)
    values = {name: _static(owner, name) for name in names}
    # What a property computes, or keeps in the object from then on, is read by other names.
    code = (types.FunctionType, *PLAIN)
    return {
        n for n, x in values.items() if n in (fields or ()) or x is MISSING or isinstance(x, code)
    }


def _requires_grad(module: nn.Module, name: str) -> bool | None:
    return getattr(member_at(module, name), "requires_grad", None)


def _static(owner: Any, name: str) -> Any:
    """An attribute of an object or of its class, without the results of properties."""
    homes = (getattr(owner, "__dict__", {}), *map(vars, type(owner).__mro__))
    return next((home[name] for home in homes if name in home), MISSING)
