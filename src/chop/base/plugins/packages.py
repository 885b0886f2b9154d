"""Packages that extend chop: their entry points, names and versions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import metadata
from itertools import takewhile
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

from chop.base.installed import version
from chop.errors import ConfigError, first_line

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
"""Entry-point groups without their prefix `chop.` -> noun for one extension."""
REGISTRIES: Mapping[str, str] = MappingProxyType(
    {
        "formats": "chop.formats:REGISTRY",
        "operators": "chop.ir.ops:OPS",
        "passes": "chop.passes:PASSES",
        "samplers": "chop.search.registry:SAMPLERS",
        "targets": "chop.export.targets:TARGETS",
        "readers": "chop.export.foreign.readers:READERS",
        "tasks": "chop.train.tasks:TASKS",
        "components": "chop.hardware.design.components:COMPONENTS",
    }
)
"""Place of the registry of each group."""
OWN = __name__.partition(".")[0]
PROGRAM = "this program"
_in_use: dict[str, str] = {}
_names: dict[str, dict[str, str]] = {}
_failed: dict[metadata.EntryPoint, PluginError] = {}
_importing: ContextVar[str] = ContextVar("package that is imported", default=PROGRAM)


class PluginError(ConfigError):
    """Raised if an extension of another package cannot be imported or is of the wrong kind."""


@cache
def entry_points(group: str) -> Mapping[str, tuple[metadata.EntryPoint, ...]]:
    """Returns entry points of installed packages by name, several for clashing packages.

    Args:
        group: key of `GROUPS`.
    """
    points: dict[str, dict[str, metadata.EntryPoint]] = {}
    for entry in _all_entry_points():
        if entry.group == f"{OWN}.{group}":
            # A package may be on the path twice.
            points.setdefault(entry.name, {}).setdefault(described(entry), entry)
    return {name: tuple(each.values()) for name, each in points.items()}


def unknown_groups() -> dict[str, tuple[str, ...]]:
    """Returns unknown groups `chop.GROUP` with the packages that declare them."""
    groups: dict[str, dict[str, None]] = {}
    for entry in _all_entry_points():
        if entry.group.removeprefix(f"{OWN}.") not in GROUPS:
            groups.setdefault(entry.group, {})[described(entry)] = None
    return {group: tuple(packages) for group, packages in groups.items()}


@cache
def _all_entry_points() -> list[metadata.EntryPoint]:
    """Reads the metadata of all installed packages, which takes tens of milliseconds.

    For a package installed twice, Python imports the first one on its path.
    """
    packages: dict[str, metadata.Distribution] = {}
    for package in metadata.distributions():
        packages.setdefault(re.sub(r"[-_.]+", "-", package.name or "").lower(), package)
    points = (point for package in packages.values() for point in package.entry_points)
    return [point for point in points if point.group.startswith(f"{OWN}.")]


def clear_entry_points() -> None:
    """Clears the cache of installed packages, for programs that install some at run time."""
    entry_points.cache_clear()
    _all_entry_points.cache_clear()
    _failed.clear()


def load_entry_point(entry: metadata.EntryPoint) -> Any:
    """Imports the object of an entry point; a failed import is not repeated.

    Raises:
        PluginError: if the import fails.
    """
    if entry in _failed:
        raise _failed[entry]
    try:
        value = entry.load()
    except (Exception, SystemExit) as error:  # third-party code
        noun = GROUPS[entry.group.removeprefix(f"{OWN}.")]
        _failed[entry] = PluginError(
            f"the {noun} '{entry.name}' of {described(entry)} cannot be imported "
            f"({type(error).__name__}: {first_line(error)}): fix or uninstall that package."
        )
        raise _failed[entry] from error
    note_use(described(entry))
    return value


def plugins_in_use() -> dict[str, str]:
    """Returns packages with extensions that this process has imported, and their versions."""
    return dict(sorted(_in_use.items()))


def names_in_use() -> dict[str, dict[str, str]]:
    """Returns names of other packages used in this process by group, for storing in files.

    Each name has its package and version. `naming_packages` uses them for files that otherwise
    contain only names, such as settings.
    """
    return {group: dict(sorted(names.items())) for group, names in sorted(_names.items())}


def described(entry: metadata.EntryPoint) -> str:
    """Returns the package of an entry point with its version."""
    if entry.dist is None:
        return get_root(entry.module)
    return f"{entry.dist.name} {entry.dist.version}"


def get_package(value: Any) -> str:
    """Returns the package of a module, class or function, with its version if known.

    Other objects belong to the package that is being imported.

    >>> get_package(PluginError), get_package(metadata), get_package("text")
    ('chop', 'importlib', 'this program')
    """
    if not isinstance(value, type | FunctionType | ModuleType):
        return _importing.get()
    module = value.__name__ if isinstance(value, ModuleType) else value.__module__
    root = get_root(module)
    if root in (OWN, "__main__"):
        return OWN if root == OWN else PROGRAM
    # Matched by name for editable installations. Packages may share a namespace.
    entries = [entry for entry in _all_entry_points() if get_root(entry.module) == root]
    if entries:
        return described(max(entries, key=lambda entry: _common_steps(entry.module, module)))
    return f"{root} {version(root) or ''}".strip()


def get_root(module: str) -> str:
    """Returns the top-level package of a module's name."""
    return module.partition(".")[0]


@contextmanager
def importing_for(package: str) -> Iterator[None]:
    """Context manager that assigns objects without a module to a package."""
    token = _importing.set(package)
    try:
        yield
    finally:
        _importing.reset(token)


def note_use(package: str) -> None:
    """Records that this process has used a package."""
    name, _, version = package.partition(" ")
    _in_use[name] = version


def note_name(group: str, name: str, package: str) -> None:
    """Records the use of a name from a package other than chop."""
    if package not in (OWN, PROGRAM):
        _names.setdefault(group, {})[name] = package


def _common_steps(one: str, other: str) -> int:
    """Returns the number of leading name parts that two dotted names share."""
    steps = zip(one.split("."), other.split("."), strict=False)
    return sum(1 for _ in takewhile(lambda step: step[0] == step[1], steps))
