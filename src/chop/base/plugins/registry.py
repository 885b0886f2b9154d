"""Registry: rows by name, which other packages extend."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, ValuesView
from dataclasses import fields, is_dataclass
from importlib import import_module, metadata
from types import FunctionType, MappingProxyType
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from chop.base.notices import warn_once
from chop.base.plugins.packages import (
    GROUPS,
    OWN,
    PROGRAM,
    REGISTRIES,
    PluginError,
    described,
    entry_points,
    get_package,
    get_root,
    importing_for,
    load_entry_point,
    note_name,
)
from chop.errors import ConfigError

T = TypeVar("T")
_registries: WeakSet[Registry[Any]] = WeakSet()


class Registry(MutableMapping[str, T], Generic[T]):
    """Rows by name: those of chop, those that a program adds, and those of entry points.

    Names of entry points are members from the start; their objects are imported when the row is
    read. `values()` leaves out what cannot be imported, with one warning each. A name that two
    packages define is an error. The same class or function may be defined again, as in a notebook.

    Args:
        group: a key of `GROUPS`.
        rows: rows of chop; a text `module:attribute` is imported when the row is read.
        kind: class of the objects that are added. Default: `as_row` checks them.
        as_row: makes a row of a name and an added object. Default: the object is the row.
        own_name: name that an added object gives itself, if that has to be the name of the row.

    Example:
        >>> readers = Registry("readers", {"own": "chop.base.plugins:GROUPS"})
        >>> "own" in readers, readers["own"] is GROUPS
        (True, True)
    """

    def __init__(
        self,
        group: str,
        rows: Mapping[str, T | str] = MappingProxyType({}),
        kind: type[T] | None = None,
        as_row: Callable[[str, Any], T] | None = None,
        own_name: Callable[[Any], str] | None = None,
    ) -> None:
        self.group = group
        self._rows: dict[str, T | str] = dict(rows)
        self._packages = dict.fromkeys(rows, OWN)
        self._added: dict[str, Any] = {}
        self.modules: dict[str, str] = {}
        self._kind, self._as_row, self._own_name = kind, as_row, own_name
        _registries.add(self)

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self)})"

    def __getitem__(self, name: str) -> T:
        self._check_clash(name)
        if name not in self._rows:
            self._import(name)
        note_name(self.group, name, self._packages[name])
        return self._row(name)

    def __setitem__(self, name: str, value: Any) -> None:
        if self._kind is not None and not isinstance(value, self._kind):
            raise self.misfit(name, value, f"an instance of {self._kind.__qualname__}")
        if self._own_name is not None and (given := self._own_name(value)) != name:
            raise self.misname(name, value, given)
        package = get_package(value)
        if name in self._rows and not _is_redefinition(self._added.get(name), value):
            raise self._clash(name, self._packages[name], package)
        self._rows[name] = value if self._as_row is None else self._as_row(name, value)
        self._packages[name], self._added[name] = package, value
        if package != OWN and name not in entry_points(self.group):
            self.modules[name] = _module_adding(value)

    def __delitem__(self, name: str) -> None:
        del self._rows[name], self._packages[name]
        self._added.pop(name, None)
        self.modules.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._rows or name in entry_points(self.group)

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys((*self._rows, *entry_points(self.group)))

    def __len__(self) -> int:
        return len({*self._rows, *entry_points(self.group)})

    def declare(self, rows: Mapping[str, T]) -> None:
        """Adds rows of chop that are defined in another module than the registry."""
        self._rows.update(rows)
        self._packages.update(dict.fromkeys(rows, OWN))

    def values(self) -> ValuesView[T]:
        """Returns a view of the rows that can be imported."""
        return _ImportableRows(self)

    def import_all(self) -> None:
        """Imports all entry points; a warning tells, once, of one that cannot be imported."""
        for name, entries in entry_points(self.group).items():
            if name in self._rows or _is_being_imported(entries[0]):
                continue
            try:
                self[name]
            except ConfigError as error:
                warn_once(str(error))

    def package(self, name: str) -> str | None:
        """Returns package and version that a row is from, as `mypkg 0.3`; None: it is of chop."""
        self[name]
        package = self.origin(name)
        return None if package == OWN else package

    def imported_rows(self) -> dict[str, T]:
        """Returns the rows of chop, and those of other packages that are imported already."""
        return {name: self._row(name) for name in list(self._rows)}

    def own_rows(self) -> dict[str, T]:
        """Returns the rows of chop, whatever other packages declare."""
        return {name: self._row(name) for name, of in self._packages.items() if of == OWN}

    def origin(self, name: str) -> str:
        """Returns package and version that a row is from, importing nothing; `chop` of its own."""
        if name in self._packages:
            return self._packages[name]
        return " and ".join(map(described, entry_points(self.group)[name]))

    def misfit(self, name: str, value: Any, expected: str) -> PluginError:
        """Returns the error for an object that is no row.

        Args:
            name: name of the row.
            value: object that was declared.
            expected: description of what is declared, with an article.
        """
        return PluginError(
            f"{GROUPS[self.group]} '{name}': expected {expected}, got {value!r:.60} of "
            f"{get_package(value)}."
        )

    def misname(self, name: str, value: Any, given: str) -> PluginError:
        """Returns the error for an object that is declared under another name than its own."""
        return PluginError(
            f"{GROUPS[self.group]} '{name}': {get_package(value)} declares it under that name, and "
            f"it calls itself '{given}': declare it as '{given}'."
        )

    def _row(self, name: str) -> T:
        row = self._rows[name]
        return _object_at(row) if isinstance(row, str) else row

    def _import(self, name: str) -> None:
        """Imports an entry point.

        Raises:
            KeyError: no package declares the name.
            PluginError: it cannot be imported, or is no row.
        """
        entry = entry_points(self.group)[name][0]
        with importing_for(described(entry)):
            value = load_entry_point(entry)
            if name not in self._rows:  # formats and passes add themselves
                self[name] = value

    def _check_clash(self, name: str) -> None:
        declared = entry_points(self.group).get(name, ())
        packages = dict.fromkeys(map(described, declared))
        if declared and name in self._rows:
            packages[self._packages[name]] = None
        if len(packages) > 1:
            raise self._clash(name, *packages)

    def _clash(self, name: str, *packages: str) -> ConfigError:
        by = " and by ".join(dict.fromkeys(packages))
        return ConfigError(
            f"the {GROUPS[self.group]} '{name}' is defined twice, by {by}: "
            "rename one, or uninstall its package."
        )


class _ImportableRows(ValuesView[T]):
    _mapping: Registry[T]

    def __iter__(self) -> Iterator[T]:
        registry = self._mapping
        registry.import_all()
        for name in list(registry._rows):
            yield registry._row(name)  # a clash is an error where the name is used


def _is_being_imported(entry: metadata.EntryPoint) -> bool:
    """Returns true if the module of an entry point has begun, and not yet defined its object."""
    module = sys.modules.get(entry.module)
    return module is not None and not hasattr(module, entry.attr.partition(".")[0])


def _is_redefinition(before: Any, now: Any) -> bool:
    def place(value: Any) -> tuple[Any, ...]:
        return tuple(getattr(value, name, None) for name in ("__module__", "__qualname__"))

    if type(before) is type(now) and not isinstance(now, type):  # rows hold functions and rows
        old, new = _parts(before), _parts(now)
        if new and old.keys() == new.keys():
            return all(_is_redefinition(old[key], value) for key, value in new.items())
    same_place = place(before) == place(now) and None not in place(now)
    return before is now or same_place or (not callable(now) and bool(before == now))


def _parts(value: Any) -> Mapping[Any, Any]:
    """Returns fields, items or elements of a row; none of other objects."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, tuple):
        return dict(enumerate(value))
    return value if isinstance(value, dict) else {}


def find_registry(group: str) -> Registry[Any]:
    """Returns the registry of a group, imported.

    Args:
        group: a key of `GROUPS`.
    """
    found: Registry[Any] = _object_at(REGISTRIES[group])
    return found


def adding_modules() -> dict[str, None]:
    """Returns modules that have added rows by themselves, rather than by entry points."""
    return {module: None for each in list(_registries) for module in each.modules.values()}


def _module_adding(value: Any) -> str:
    """Returns the module of a class or function, or that whose code adds a row just now."""
    if isinstance(value, type | FunctionType):
        return value.__module__
    frame = inspect.currentframe()
    while frame is not None and get_root(frame.f_globals["__name__"]) in (OWN, "collections"):
        frame = frame.f_back
    return PROGRAM if frame is None else str(frame.f_globals["__name__"])


def _object_at(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
