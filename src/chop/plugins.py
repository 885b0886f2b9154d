"""Plug-ins: registries of names that other packages extend by entry points.

A package declares an extension in its `pyproject.toml`, in the group of its kind, by a name and the
place of an object (specification: packaging.python.org, "Entry points specification"):

    [project.entry-points."chop.formats"]
    int_group = "mypkg.formats:IntGroup"

Entry points are imported only when their name is used, or when all rows of a group are needed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module, metadata
from itertools import takewhile
from pathlib import Path
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any, Generic, TypeVar

from chop.errors import ConfigError, first_line
from chop.notices import warn_once

GROUPS: Mapping[str, str] = MappingProxyType(
    {
        "formats": "number format",
        "operators": "operator",
        "passes": "pass",
        "samplers": "sampler",
        "targets": "export target",
        "readers": "reader",
        "tasks": "task",
        "components": "circuit component",
    }
)
"""Groups of entry points without their prefix `chop.`, with the noun for one extension."""
OWN = __name__.partition(".")[0]
PROGRAM = "this program"
_in_use: dict[str, str] = {}
_failed: dict[metadata.EntryPoint, PluginError] = {}
_importing: ContextVar[str] = ContextVar("package that is imported", default=PROGRAM)

T = TypeVar("T")


class PluginError(ConfigError):
    """An extension of another package cannot be imported, or is not of the declared kind."""


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

    Example:
        >>> readers = Registry("readers", {"own": "chop.plugins:GROUPS"})
        >>> "own" in readers, readers["own"] is GROUPS
        (True, True)
    """

    def __init__(
        self,
        group: str,
        rows: Mapping[str, T | str] = MappingProxyType({}),
        kind: type[T] | None = None,
        as_row: Callable[[str, Any], T] | None = None,
    ) -> None:
        self.group = group
        self._rows: dict[str, T | str] = dict(rows)
        self._packages = dict.fromkeys(rows, OWN)
        self._added: dict[str, Any] = {}
        self._kind, self._as_row = kind, as_row

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self)})"

    def __getitem__(self, name: str) -> T:
        self._check_clash(name)
        if name not in self._rows:
            self._import(name)
        return self._row(name)

    def __setitem__(self, name: str, value: Any) -> None:
        if self._kind is not None and not isinstance(value, self._kind):
            raise self.misfit(name, value, f"an instance of {self._kind.__qualname__}")
        package = package_of(value)
        if name in self._rows and not _is_redefinition(self._added.get(name), value):
            raise self._clash(name, self._packages[name], package)
        self._rows[name] = value if self._as_row is None else self._as_row(name, value)
        self._packages[name], self._added[name] = package, value

    def __delitem__(self, name: str) -> None:
        del self._rows[name], self._packages[name]
        self._added.pop(name, None)

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
        package = self._packages[name]
        return None if package == OWN else package

    def misfit(self, name: str, value: Any, expected: str) -> PluginError:
        """Returns the error for an object that is no row.

        Args:
            name: name of the row.
            value: object that was declared.
            expected: description of what is declared, with an article.
        """
        return PluginError(
            f"{GROUPS[self.group]} '{name}': expected {expected}, got {value!r:.60} of "
            f"{package_of(value)}."
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
        with _importing_for(described(entry)):
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


@cache
def entry_points(group: str) -> Mapping[str, tuple[metadata.EntryPoint, ...]]:
    """Returns entry points of installed packages by name; several where packages clash.

    Args:
        group: a key of `GROUPS`.
    """
    found: dict[str, dict[str, metadata.EntryPoint]] = {}
    for entry in _all_entry_points():
        if entry.group == f"{OWN}.{group}":
            # A package that is on the path twice is one package.
            found.setdefault(entry.name, {}).setdefault(described(entry), entry)
    return {name: tuple(each.values()) for name, each in found.items()}


@cache
def _all_entry_points() -> list[metadata.EntryPoint]:
    """Reads the metadata of every installed package: tens of milliseconds.

    Of a package that is installed twice, Python imports the first on its path.
    """
    packages: dict[str, metadata.Distribution] = {}
    for package in metadata.distributions():
        packages.setdefault(re.sub(r"[-_.]+", "-", package.name or "").lower(), package)
    points = (point for package in packages.values() for point in package.entry_points)
    return [point for point in points if point.group.startswith(f"{OWN}.")]


def clear_entry_points() -> None:
    """Forgets which packages are installed, for programs that install some while they run."""
    entry_points.cache_clear()
    _all_entry_points.cache_clear()
    _failed.clear()


def load_entry_point(entry: metadata.EntryPoint) -> Any:
    """Imports the object of an entry point. An import that has failed is not tried again.

    Raises:
        PluginError: the import fails.
    """
    if entry in _failed:
        raise _failed[entry]
    try:
        value = entry.load()
    except (Exception, SystemExit) as error:  # code of other people
        noun = GROUPS[entry.group.removeprefix(f"{OWN}.")]
        _failed[entry] = PluginError(
            f"the {noun} '{entry.name}' of {described(entry)} cannot be imported "
            f"({type(error).__name__}: {first_line(error)}): mend or uninstall that package."
        )
        raise _failed[entry] from error
    _note_use(described(entry))
    return value


def import_plugin(module: str) -> None:
    """Imports a module that adds rows to registries as it is imported.

    Args:
        module: dotted name, such as `mypkg` or `mypkg.formats`: of an installed package, or of one
            in the current folder.
    Raises:
        PluginError: it cannot be imported.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last, so that it hides nothing
    with _importing_for(module):
        try:
            imported = import_module(module)
        except (Exception, SystemExit) as error:  # code of other people
            raise PluginError(
                f"--import {module}: the module cannot be imported "
                f"({type(error).__name__}: {first_line(error)})."
            ) from error
    _note_use(package_of(imported))


def plugins_in_use() -> dict[str, str]:
    """Returns packages with extensions that this process has imported, and their versions."""
    return dict(sorted(_in_use.items()))


def described(entry: metadata.EntryPoint) -> str:
    """Returns the package of an entry point with its version."""
    if entry.dist is None:
        return root_of(entry.module)
    return f"{entry.dist.name} {entry.dist.version}"


def package_of(value: Any) -> str:
    """Returns the package of a module, class or function with its version if it has one.

    Other objects are of the package that is being imported.

    >>> package_of(Registry), package_of(sys), package_of("text")
    ('chop', 'sys', 'this program')
    """
    if not isinstance(value, type | FunctionType | ModuleType):
        return _importing.get()
    module = value.__name__ if isinstance(value, ModuleType) else value.__module__
    root = root_of(module)
    if root in (OWN, "__main__"):
        return OWN if root == OWN else PROGRAM
    # By the name, as of an editable installation. Packages may share a namespace.
    entries = [entry for entry in _all_entry_points() if root_of(entry.module) == root]
    if entries:
        return described(max(entries, key=lambda entry: _common_steps(entry.module, module)))
    return f"{root} {getattr(sys.modules.get(root), '__version__', '')}".strip()


def missing(package: str) -> str:
    """Returns the end of a sentence on an extension whose package cannot be found.

    >>> missing("mypkg 0.3")
    'is of the package mypkg 0.3, which is not installed: pip install mypkg'
    >>> missing("mymodule")
    'is of the module mymodule, which is not imported: import it, or give --import mymodule'

    Args:
        package: result of `package_of`; a module that no package installed has no version.
    """
    name, _, version = package.partition(" ")
    if version:
        return f"is of the package {package}, which is not installed: pip install {name}"
    return f"is of the module {name}, which is not imported: import it, or give --import {name}"


def root_of(module: str) -> str:
    """Returns the top-level package of a module's name."""
    return module.partition(".")[0]


@contextmanager
def _importing_for(package: str) -> Iterator[None]:
    token = _importing.set(package)
    try:
        yield
    finally:
        _importing.reset(token)


def _note_use(package: str) -> None:
    name, _, version = package.partition(" ")
    _in_use[name] = version


def _common_steps(one: str, other: str) -> int:
    """Returns how many names two dotted names begin with together."""
    steps = zip(one.split("."), other.split("."), strict=False)
    return sum(1 for _ in takewhile(lambda step: step[0] == step[1], steps))


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


def _object_at(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
