"""Registry of named rows that other packages can extend."""

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
from chop.errors import ConfigError, describe

T = TypeVar("T")
_registries: WeakSet[Registry[Any]] = WeakSet()


class Registry(MutableMapping[str, T], Generic[T]):
    """Mapping of names to rows from chop, from the running program, and from entry points.

    Names of entry points are present from the start, and their objects are imported on access.
    `values()` skips objects that cannot be imported, with one warning each. A name defined by two
    packages is an error. The same class or function may be defined again, as in a notebook.

    Args:
        group: key of `GROUPS`.
        rows: rows of chop. A text `module:attribute` is imported on access.
        kind: class of added objects. Default: `as_row` checks them.
        as_row: converts a name and an added object to a row. Default: the object is the row.
        own_name: returns the name that an added object defines, if it must equal the row's name.

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
        """Returns a view of the importable rows."""
        return _ImportableRows(self)

    def import_all(self) -> None:
        """Imports all entry points, and warns once about each that fails."""
        for name, entries in entry_points(self.group).items():
            if name in self._rows or _is_being_imported(entries[0]):
                continue
            try:
                self[name]
            except ConfigError as error:
                warn_once(str(error))

    def package(self, name: str) -> str | None:
        """Returns package and version of a row, such as `mypkg 0.3`, or None for rows of chop."""
        self[name]
        package = self.origin(name)
        return None if package == OWN else package

    def imported_rows(self) -> dict[str, T]:
        """Returns the rows of chop and the imported rows of other packages."""
        return {name: self._row(name) for name in list(self._rows)}

    def own_rows(self) -> dict[str, T]:
        """Returns the rows of chop."""
        return {name: self._row(name) for name, of in self._packages.items() if of == OWN}

    def origin(self, name: str) -> str:
        """Returns package and version of a row without importing it; `chop` for its own rows."""
        if name in self._packages:
            return self._packages[name]
        return " and ".join(map(described, entry_points(self.group)[name]))

    def misfit(self, name: str, value: Any, expected: str) -> PluginError:
        """Returns the error for an object of the wrong kind.

        Args:
            name: name of the row.
            value: declared object.
            expected: description of the expected kind, with an article.
        """
        return PluginError(
            f"{GROUPS[self.group]} '{name}': expected {expected}, got {describe(value)} of "
            f"{get_package(value)}."
        )

    def misname(self, name: str, value: Any, given: str) -> PluginError:
        """Returns the error for an object declared under another name than its own."""
        return PluginError(
            f"{GROUPS[self.group]} '{name}': {get_package(value)} declares it under that name, but "
            f"its own name is '{given}': declare it as '{given}'."
        )

    def _row(self, name: str) -> T:
        row = self._rows[name]
        return _object_at(row) if isinstance(row, str) else row

    def _import(self, name: str) -> None:
        """Imports an entry point.

        Raises:
            KeyError: if no package declares the name.
            PluginError: if it cannot be imported, or is of the wrong kind.
        """
        entry = entry_points(self.group)[name][0]
        with importing_for(described(entry)):
            value = load_entry_point(entry)
            if name not in self._rows:  # formats and passes register themselves on import
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
            yield registry._row(name)  # a clash raises an error on access


def _is_being_imported(entry: metadata.EntryPoint) -> bool:
    """Returns whether the module of an entry point is being imported and has not defined it yet."""
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
    """Returns the fields, items or elements of a row; none for other objects."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, tuple):
        return dict(enumerate(value))
    return value if isinstance(value, dict) else {}


def find_registry(group: str) -> Registry[Any]:
    """Imports and returns the registry of a group.

    Args:
        group: key of `GROUPS`.
    """
    registry: Registry[Any] = _object_at(REGISTRIES[group])
    return registry


def adding_modules() -> dict[str, None]:
    """Returns modules that have added rows directly instead of through entry points."""
    return {module: None for each in list(_registries) for module in each.modules.values()}


def _module_adding(value: Any) -> str:
    """Returns the module of a class or function, or else the module that is adding the row."""
    if isinstance(value, type | FunctionType):
        return value.__module__
    frame = inspect.currentframe()
    while frame is not None and get_root(frame.f_globals["__name__"]) in (OWN, "collections"):
        frame = frame.f_back
    return PROGRAM if frame is None else str(frame.f_globals["__name__"])


def _object_at(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
