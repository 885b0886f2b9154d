"""Values that a model's code reads from attributes, modules, closures, objects and environment.

A graph holds them as constants. A call warns if one of them has changed.
"""

from __future__ import annotations

import types
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn

from chop.captured.module_tree import member_at
from chop.captured.state.code_search import (
    VARIABLES,
    is_opaque,
    is_own_class,
    names_in,
    variable_names,
)
from chop.captured.state.finder import (
    ALL,
    CONTENT,
    CONTEXT,
    COPY,
    FIELDS,
    FUNCTION,
    ITEMS,
    MEMBERS,
    Finder,
    Origin,
    Owners,
)
from chop.captured.state.places import Places
from chop.captured.state.values import MISSING, PLAIN, content
from chop.errors import enumerate_names

KEY = "_outer_values"
"""Attribute of a captured module that holds them."""

_OWN_FIELDS = frozenset(vars(nn.Module()))
_ARGUMENTS = {"use_cache"}
"""Settings that a graph follows by its arguments."""
_SAVED = {"dtype", "torch_dtype", "architectures", "quantization_config"}
"""Settings of a `transformers` configuration that saving its model writes."""
_MAX_NAMES = 4

_Modules = Mapping[str, nn.Module]
_Attributes = Collection[tuple[str, str]]


class OuterValueWarning(UserWarning):
    """Warns that a value read by a model's code has changed since the capture."""


class OuterValues:
    """Values that the code of a model reads, as they were at capture.

    Copies of a graph share them. A pickle has none, since another process starts with other values.

    Args:
        modules: recorded modules by path.
        changed: attributes, by path and name, that a forward changes itself.
    """

    def __init__(self, modules: _Modules | None = None, changed: _Attributes = ()) -> None:
        self._modules = WeakValueDictionary(modules or {})
        self._number, self._changed = len(self._modules), changed
        self._fields: dict[str, dict[str, Any]] = {}
        self._flags: dict[str, bool] = {}
        owners, readers = self._find()
        for reader in readers:
            for path, module in reader.modules.items():
                own = reader.list_names(module) - _OWN_FIELDS
                self._fields[path] = {n: content(_static(module, n), False, own) for n in own}
                if "requires_grad" in own:
                    parameters = module.named_parameters(path)
                    self._flags |= {name: x.requires_grad for name, x in parameters}
        names = set().union(*(reader.names for reader in readers))
        self._places = Places(owners, names, self._find_again)

    def _find(self) -> tuple[Owners, list[_Reader]]:
        owners: Owners = {}
        by_class: defaultdict[type[nn.Module], dict[str, nn.Module]] = defaultdict(dict)
        for path, module in self._modules.items():
            if not isinstance(module, torch.jit.ScriptModule):
                by_class[type(module)][path] = module
        readers = [_Reader(instances, owners, self._changed) for instances in by_class.values()]
        for reader in readers:
            reader.find()
        return owners, readers

    def _find_again(self) -> Owners | None:
        # After parts of the model were freed, the search would miss values.
        return self._find()[0] if len(self._modules) == self._number else None

    def warn(self, captured: nn.Module, scopes: Iterable[tuple[str, nn.Module]]) -> None:
        """Warns of changed values.

        Args:
            captured: the module whose graph holds the values.
            scopes: its traced modules by path; attributes set on them have no effect.
        """
        for text in self._changes(captured, scopes):
            text += ": the graph keeps the old value; capture the model again"
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
                    yield f"{label} was set on the graph, which holds its old value as a constant"
        flags = [n for n, x in self._flags.items() if _requires_grad(captured, n) not in (x, None)]
        if flags:
            names = enumerate_names(flags, _MAX_NAMES)
            yield f"requires_grad, which the model's code reads, has changed for {names}"

    def __deepcopy__(self, memo: Any) -> OuterValues:
        return self

    def __reduce__(self) -> Any:
        return OuterValues, ()


class _Reader(Finder):
    """Finder of the values that the code of modules of one class reads by name.

    Args:
        modules: the modules by path.
        owners: receives the values by owner and part.
        changed: attributes, by path and name, that a forward changes itself.
    """

    def __init__(self, modules: _Modules, owners: Owners, changed: _Attributes) -> None:
        super().__init__(modules, owners, set())
        self._changed = changed
        self._set_elsewhere = {name.rpartition(".")[2] for _, name in changed}
        self._names: dict[type, set[str]] = {}

    def begin(self) -> None:
        self.known.clear()
        self._names.clear()

    def list_names(self, owner: Any) -> set[str]:
        """Returns the names in the code that it does not set itself on objects of the owner's
        class.
        """
        cls = owner if isinstance(owner, type) else type(owner)
        if cls not in self._names:
            self._names[cls] = self.names.keys() - _ARGUMENTS - self.stored_on(cls)
        return self._names[cls]

    def visit_module(self, path: str, module: nn.Module) -> None:
        cls, fields = type(module), vars(module)
        code = next(iter(self.names.values()), nn.Module.train.__code__)
        origin, is_own = Origin(path, path or cls.__name__, code), is_own_class(cls)
        names = self.list_names(module) - _OWN_FIELDS - {n for p, n in self._changed if p == path}
        # `forward` is called by torch, so the code of the model need not name it.
        called = names | {"forward"}
        read = _present(module, fields, called) if is_own else names & fields.keys()
        self.add(module, FIELDS, origin, read)
        for name, part in MEMBERS.items():
            # Containers such as Sequential call all of their children.
            if is_opaque(cls):
                self.add(module, ITEMS.format(part), origin, ALL)
            else:
                self.add(module, part, origin, names if is_own else names & fields[name].keys())
        self.visit(cls, origin)

    def variables(self, function: types.FunctionType) -> Collection[str]:
        present = variable_names(function.__code__) & function.__globals__.keys()
        return present - self._settable(function)

    def _settable(self, function: types.FunctionType) -> set[str]:
        return {*names_in(function.__code__, VARIABLES), *self._set_elsewhere, "__class__"}

    def keys(
        self, owner: Any, part: str, now: Mapping[Any, Any], origin: Origin
    ) -> Collection[Any]:
        if part in (ITEMS, CONTENT, CONTEXT):
            return ALL if part == ITEMS else [0]
        if part == FUNCTION:
            return now.keys() - self._settable(owner) if owner in self.functions else ()
        names = self.list_names(owner)
        if part == COPY:
            return names | self.texts
        if isinstance(owner, type):
            return names | {"forward"} if issubclass(owner, nn.Module) else names
        if isinstance(owner, types.FunctionType | types.ModuleType | nn.Module):
            return names & now.keys() - _OWN_FIELDS
        # If attributes are looked up in a mapping, only names in the code count.
        for table in now.values() if hasattr(type(owner), "__getattr__") else ():
            if isinstance(table, dict):
                self.known.add(id(table))
                self.add(table, COPY, origin)
        is_known = is_own_class(type(owner)) or is_opaque(type(owner))
        return _present(owner, now, names) if is_known else names & now.keys() - _SAVED


def _present(owner: Any, fields: Collection[str], names: Collection[str]) -> set[str]:
    """Returns the names that are attributes of an object itself, or could become so."""
    values = {name: _static(owner, name) for name in names}
    # Properties are read through the attributes that they use.
    code = (types.FunctionType, *PLAIN)
    return {n for n, x in values.items() if n in fields or x is MISSING or isinstance(x, code)}


def _requires_grad(module: nn.Module, name: str) -> bool | None:
    return getattr(member_at(module, name), "requires_grad", None)


def _static(owner: Any, name: str) -> Any:
    """Returns an attribute of an object or of its class, without evaluating properties."""
    homes = (getattr(owner, "__dict__", {}), *map(vars, type(owner).__mro__))
    return next((home[name] for home in homes if name in home), MISSING)
