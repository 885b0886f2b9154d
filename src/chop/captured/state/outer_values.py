"""Outer values: what a model's code reads of attributes, files, closures, objects, environment.

A graph holds them as constants. A call warns where one of them is no longer what it was.
"""

from __future__ import annotations

import functools
import os
import sys
import types
import warnings
import weakref
from array import array
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from chop.captured.module_tree import member_at
from chop.captured.state.code_search import (
    CodeSearch,
    code_names,
    first_line,
    functions_of,
    is_opaque,
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
from chop.errors import enumerate_names
from chop.private.modules import MEMBERS

KEY = "_outer_values"
"""Where a captured module keeps them."""

_OWN_FIELDS = frozenset(vars(nn.Module()))
_ARGUMENTS = {"use_cache"}
"""Settings that a graph follows by its arguments."""
_SAVED = {"dtype", "torch_dtype", "architectures", "quantization_config"}
"""Settings of a configuration of transformers that saving its model writes."""
_OTHER = "other content"
_MAX_NAMES = 4
_LOADED = ("LOAD_GLOBAL", "LOAD_NAME")
_STORED = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF")
_OF_FUNCTIONS = ("__code__", "__defaults__", "__kwdefaults__")

_Keys = dict[Any, tuple[str, types.CodeType]]
"""Names of values, each with what to call the value and the code that reads it; `...` is all."""
_Renew = Callable[..., None]
_Found = dict[tuple[int, str], tuple[Any, _Keys]]


class OuterValueWarning(UserWarning):
    """A value that a model's code reads has changed since the model was captured."""


# Parts of an owner `{}`: mappings, in Python.
_FIELDS, _KEYS, _COPY = "{}.__dict__", "{}", "{{**{}}}"
_MEMBERS = [f"{{}}.__dict__['{name}']" for name in MEMBERS]
_SLOTS, _FUNCTION, _ITEMS = "fields_of({})", "function({})", "numbered(items_of({}))"
_CONTENT, _CONTEXT = "{{0: content({})}}", "{{0: {}.get(MISSING)}}"


def _function(function: types.FunctionType) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    variables = {name: cell_content(cell) for name, cell in cells}
    return variables | {name: getattr(function, name) for name in _OF_FUNCTIONS}


def _numbered(values: Iterable[Any]) -> dict[int, Any]:
    return dict(enumerate(values))


_SCOPE: dict[str, Any] = {"fields_of": fields_of, "items_of": items_of, "content": content}
_SCOPE |= {"function": _function, "numbered": _numbered, "MISSING": MISSING}


@functools.cache
def _reader(part: str) -> Callable[[Any], Mapping[Any, Any]]:
    """Returns the function that reads a part of an owner."""
    read: Callable[[Any], Mapping[Any, Any]] = eval(f"lambda o: {part.format('o')}", _SCOPE)
    return read


class _Place:
    """Values that code reads of one owner: attributes, items, variables of a closure.

    Args:
        owner: the object, container, function or file.
        part: which part of it.
        keys: what code reads there.
        names: the attributes of objects that count.
        renew: is called where `condition` may be another, as at the end of an object.
    """

    def __init__(
        self, owner: Any, part: str, keys: _Keys, names: Collection[str], renew: _Renew
    ) -> None:
        self._read = _reader(part)
        self._part, self._described, self._names, self._renew = part, keys, names, renew
        now, again = self._read(owner), self._read(owner)
        known = now if ... in keys else [key for key in keys if key in now]
        self._missing = frozenset(keys) - now.keys() - {...}
        # What may lead to a model is not kept alive.
        self.owner = _weakly(owner, renew)
        self._kept = {key: _weakly(now[key], renew) for key in known}
        self._made = {key for key in known if now[key] is not again[key]}
        self._contents = {key: content(now[key], False, names) for key in known}
        self._shown = {k: repr(now[k]) if isinstance(now[k], PLAIN) else _OTHER for k in known}
        # A table of tensors may grow: a forward keeps there what a graph computes.
        is_fixed = ... in keys and not any(isinstance(x, Tensor) for x in now.values())
        self._size = len(now) if is_fixed else None

    def condition(self, number: int, names: dict[str, Any]) -> str:
        """Python that is true while every value is the same object; it may raise where one is not.

        Args:
            number: of the place.
            names: takes the variables of the condition.
        """
        names[f"w{number}"], part = self.owner, self._part.format(f"w{number}()")
        if self._size is not None:
            names[f"i{number}"] = [id(get()) for get in self._kept.values()]
            return f"[*map(id, {part.removeprefix('numbered')})] == i{number}"
        names[f"i{number}"], tests = self._missing, [f"(m := {part}) is m"]
        if self._missing:
            tests.append(f"m.keys().isdisjoint(i{number})")
        for index, (key, get) in enumerate(self._kept.items()):
            is_weak, name = isinstance(get, weakref.ref), f"v{number}_{index}"
            names[name] = get if is_weak else get()
            same = "==" if key in self._made else "is"
            tests.append(f"m[{key!r}] {same} {name}{'()' if is_weak else ''}")
        return " and ".join(tests)

    def changes(self) -> list[str]:
        """Says what has changed."""
        owner = self.owner()
        if owner is None:
            return []
        now = self._read(owner)
        found = [(key, "no value") for key in self._missing & now.keys()]
        for key, get in self._kept.items():
            value = now.get(key, MISSING)
            if value is get() and value is not None:  # what has ended is None too
                continue
            if content(value, False, self._names) != self._contents[key]:
                found.append((key, self._shown[key]))
            elif isinstance(value, PLAIN) and value is not get():
                self._kept[key] = _weakly(value, self._renew)
                self._renew()
        if ... in self._described and (found or self._size not in (None, len(now))):
            found = [(..., _OTHER)]
        texts = ((*self._described[key], key, shown) for key, shown in dict.fromkeys(found))
        return [
            f"{label}, read at {first_line(code, key)}, was captured with {shown}"
            for label, code, key, shown in texts
        ]


def _weakly(value: Any, on_end: _Renew) -> Callable[[], Any]:
    """Returns a function that gives a value, and does not keep it alive where that can be."""
    try:
        return weakref.ref(value, on_end)
    except TypeError:
        return lambda: value


class OuterValues:
    """The values that the code of a model reads, as they were at capture.

    Copies of a graph share them; a pickle has none, since another process starts with others.

    Args:
        modules: the modules by path whose Python was recorded.
        changed: attributes, by path and name, that a forward changes itself.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module] | None = None,
        changed: Collection[tuple[str, str]] = (),
    ) -> None:
        self._fields: dict[str, dict[str, Any]] = {}
        self._flags: dict[str, bool] = {}
        found: _Found = {}
        by_class: dict[type[nn.Module], dict[str, nn.Module]] = {}
        for path, module in (modules or {}).items():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            by_class.setdefault(type(module), {})[path] = module
        names: set[str] = set()
        for cls, instances in by_class.items():
            reader = _Reader(cls, found, changed)
            reader.find(instances)
            names |= reader.search.names.keys()
            for path, module in instances.items():
                own = reader.names_of(module) - _OWN_FIELDS
                self._fields[path] = {n: content(_static(module, n), False, own) for n in own}
                if "requires_grad" in own:
                    parameters = module.named_parameters(path)
                    self._flags |= {name: x.requires_grad for name, x in parameters}
        spots = [(owner, part, keys) for (_, part), (owner, keys) in found.items() if keys]
        self._places = [_Place(*spot, names, self._renew) for spot in spots]
        self._compile()

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
        try:
            is_same = self._is_same()
        except Exception:  # an owner, a key or a variable is gone
            is_same = False
        if not is_same:
            found = [text for place in self._places for text in place.changes()]
            yield from dict.fromkeys(found)
            if self._is_old and not found:
                self._places = [place for place in self._places if place.owner() is not None]
                self._compile()
        for path, scope in scopes:
            before, fields = self._fields.get(path, {}), vars(scope)
            for name in () if before.keys().isdisjoint(fields) else before.keys() & fields.keys():
                if content(fields[name], False, before) != before[name]:
                    label = f"{path or 'the model'}.{name}"
                    yield f"{label} was set on the graph, which has its value as a constant"
        now = {
            name: getattr(member_at(captured, name), "requires_grad", None) for name in self._flags
        }
        flags = [name for name, x in now.items() if x is not None and x != self._flags[name]]
        if flags:
            names = enumerate_names(flags, _MAX_NAMES)
            yield f"requires_grad, which the model's code reads, has changed for {names}"

    def _renew(self, _: Any = None) -> None:
        self._is_old, self._is_same = True, bool  # which is False of nothing

    def _compile(self) -> None:
        """Compiles one comparison of all values: a call of a small graph would notice a loop."""
        names: dict[str, Any] = {**_SCOPE}
        texts = [place.condition(number, names) for number, place in enumerate(self._places)]
        self._is_old = False
        self._is_same: Callable[[], bool] = eval(f"lambda: {' and '.join(texts) or True}", names)

    def __deepcopy__(self, memo: Any) -> OuterValues:
        return self

    def __reduce__(self) -> Any:
        return OuterValues, ()


class _Reader:
    """Finds what the forward of a module class reads.

    Args:
        cls: the class.
        found: takes what is found, by owner and part.
        changed: attributes, by path and name, that a forward changes itself.

    Attributes:
        search: the code.
    """

    def __init__(
        self, cls: type[nn.Module], found: _Found, changed: Collection[tuple[str, str]]
    ) -> None:
        self.search = CodeSearch()
        self.search.add(cls)
        self._found, self._changed = found, changed
        self._set_elsewhere = {name.rpartition(".")[2] for _, name in changed}
        self._seen: set[int] = set()
        self._names: dict[type, set[str]] = {}
        self._code = next(iter(self.search.names.values()), nn.Module.train.__code__)

    def find(self, modules: Mapping[str, nn.Module]) -> None:
        """Finds what the code reads of modules, and of all that it reaches from there."""
        size = -1
        # Objects that are reached bring code of their own, with further names.
        while size != (size := len(self.search.names) + len(self.search.functions)):
            self._seen.clear()
            self._names.clear()
            for path, module in modules.items():
                self._module(path, module)
            for function in list(self.search.functions.values()):
                self._function(function)

    def names_of(self, owner: Any) -> set[str]:
        """The names in the code that it does not set itself on objects of the owner's class."""
        cls = owner if isinstance(owner, type) else type(owner)
        if cls not in self._names:
            self._names[cls] = self.search.names.keys() - _ARGUMENTS - self.search.stored_on(cls)
        return self._names[cls]

    def _module(self, path: str, module: nn.Module) -> None:
        label, fields = path or type(module).__name__, vars(module)
        names = self.names_of(module) - _OWN_FIELDS - {n for p, n in self._changed if p == path}
        own = is_own_class(type(module))
        called = names | {"forward"}
        fields_read = _attributes(module, called) if own else names & fields.keys()
        self._add(module, _FIELDS, fields_read, label)
        for name, part in zip(MEMBERS, _MEMBERS, strict=True):
            # Sequential and the like go by all of their children.
            if is_opaque(type(module)):
                self._add(module, _ITEMS.format(part), [...], label)
            else:
                self._add(module, part, names if own else names & fields[name].keys(), label)
        self._class(type(module))

    def _class(self, cls: type) -> None:
        for home in filter(is_own_class, cls.__mro__):
            names = self.names_of(home) | ({"forward"} if issubclass(home, nn.Module) else set())
            self._add(
                home, _FIELDS, names if home is cls else names & vars(home).keys(), home.__name__
            )

    def _function(self, function: types.FunctionType) -> None:
        code, label = function.__code__, function.__name__
        settable = {*names_in(code, _STORED), *self._set_elsewhere, "__class__"}
        # Attributes are among the names of code, and may be called as a variable of the file.
        texts = texts_in(code) if "globals" in code_names(code) else ()
        names = {*names_in(code, _LOADED), *texts} & function.__globals__.keys()
        self._add(function.__globals__, _KEYS, names - settable, "")
        self._add(function, _FUNCTION, {*code.co_freevars} - settable, "")
        self._add(function, _FUNCTION, _OF_FUNCTIONS, label)
        self._add(function, _FIELDS, self.names_of(function) & vars(function).keys(), label)
        for name in names_in(code, ("IMPORT_NAME",)):
            self._look_into(sys.modules.get(name), (name, code))
        if {"environ", "getenv"} & code_names(code):
            self._add(os.environ, _KEYS, texts_in(code), "os.environ")

    def _add(self, owner: Any, part: str, keys: Collection[Any], label: str) -> None:
        now = _reader(part)(owner)
        _, known = self._found.setdefault((id(owner), part), (owner, {}))
        for key in keys:
            code = self.search.names.get(key, self._code)
            named = f"{label}['{key}']" if owner is os.environ else f"{label}.{key}"
            known.setdefault(key, (label if key is ... else named if label else key, code))
            if key in now:
                self._look_into(now[key], known[key])

    def _look_into(self, value: Any, described: tuple[str, types.CodeType]) -> None:
        if isinstance(value, (*PLAIN, Tensor)) or value is MISSING or id(value) in self._seen:
            return
        self._seen.add(id(value))
        label, names = described[0], self.names_of(value)
        if any(functions_of(value)):
            self.search.add(value)
        if isinstance(value, type):
            self._class(value)
        elif isinstance(value, nn.Module | types.ModuleType):
            self._add(value, _FIELDS, names & vars(value).keys() - _OWN_FIELDS, label)
        elif isinstance(value, dict) and hasattr(type(value), "__getattr__"):
            self._add(value, _COPY, names | self.search.texts, label)
        elif isinstance(value, ContextVar):
            self._found[id(value), _CONTEXT] = (value, {0: described})
        elif isinstance(value, np.ndarray | array | bytearray):
            self._found[id(value), _CONTENT] = (value, {0: described})
        elif isinstance(value, CONTAINERS):
            is_small = len(value) <= MAX_ITEMS
            keys = {... if is_small else 0: described}
            self._found[id(value), _ITEMS if is_small else _CONTENT] = (value, keys)
        if (fields := fields_of(value)) is not None and not isinstance(value, types.FunctionType):
            if is_own_class(type(value)):
                self.search.add(type(value))
                self._class(type(value))
            # Where attributes are looked up in a mapping, only those that the code names count.
            tables = fields.values() if hasattr(type(value), "__getattr__") else ()
            for table in (x for x in tables if isinstance(x, dict)):
                self._seen.add(id(table))
                self._add(table, _COPY, names | self.search.texts, label)
            own = is_own_class(type(value)) or is_opaque(type(value))
            part = _SLOTS if slots_of(cast(Hashable, type(value))) else _FIELDS
            read = _attributes(value, names) if own else names & fields.keys() - _SAVED
            self._add(value, part, read, label)
        for part in () if isinstance(value, types.FunctionType) else parts_of(value, ()) or ():
            self._look_into(part, described)


def _attributes(owner: Any, names: Collection[str]) -> set[str]:
    """The names that are attributes of an object itself, or that could become so."""
    fields = fields_of(owner) if not isinstance(owner, nn.Module) else vars(owner)
    found = {name: _static(owner, name) for name in names}
    # What a property computes, or keeps in the object from then on, is read by other names.
    code = (types.FunctionType, *PLAIN)
    return {
        n for n, x in found.items() if n in (fields or ()) or x is MISSING or isinstance(x, code)
    }


def _static(owner: Any, name: str) -> Any:
    """An attribute of an object or of its class, without the results of properties."""
    homes = (getattr(owner, "__dict__", {}), *map(vars, type(owner).__mro__))
    return next((home[name] for home in homes if name in home), MISSING)
