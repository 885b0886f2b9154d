"""Messages on files that depend on extensions of packages that are not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from chop.base.installed import version
from chop.base.plugins.packages import GROUPS, PluginError, entry_points
from chop.errors import ConfigError


@contextmanager
def naming_packages(names: Any, where: str) -> Iterator[None]:
    """Context manager for reading settings; errors on unknown names mention their package.

    Args:
        names: result of `names_in_use` from the file. Invalid content of older or foreign files is
            ignored.
        where: file for the message.
    Raises:
        PluginError: if a name in `names` is unknown.
    """
    try:
        yield
    except ConfigError as error:
        for group, name, package in _listed(names):
            if f"'{name}'" in str(error) and name not in entry_points(group):
                noun = GROUPS[group]
                raise PluginError(f"{where}: the {noun} '{name}' {missing(package)}.") from error
        raise


def _listed(names: Any) -> Iterator[tuple[str, str, str]]:
    for group, packages in names.items() if isinstance(names, Mapping) else ():
        for name, package in packages.items() if isinstance(packages, Mapping) else ():
            is_absent = isinstance(package, str) and (" " in package or package not in sys.modules)
            if group in GROUPS and is_absent:
                yield group, name, package


def missing(package: str) -> str:
    """Returns the end of a sentence on an extension whose package is unavailable.

    >>> missing("mypkg 0.3")
    'is from the package mypkg 0.3, which is not installed: pip install mypkg'
    >>> missing("mymodule").partition(": ")[2]
    'import it in Python, or pass --import mymodule'

    Args:
        package: result of `get_package`. A module outside of packages has no version.
    """
    name, _, made = package.partition(" ")
    if not made:
        way_out = f"import it in Python, or pass --import {name}"
        return f"is from the module {name}, which is not imported: {way_out}"
    if (here := _installed_version(name)) is None:
        return f"is from the package {package}, which is not installed: pip install {name}"
    if here == made:
        again = f"pip install {name} --force-reinstall"
        return f"is from the package {package}, which no longer has it: {again}"
    other = f"{name} {here} is installed and has none of that name"
    return f"is from the package {package}, and {other}: pip install '{name}=={made}'"


def other_version(package: str) -> str | None:
    """Returns a phrase on a different installed version of a package, or None if it is the same.

    Args:
        package: result of `get_package`, from a file.
    """
    name, _, made = package.partition(" ")
    here = _installed_version(name) if made else None
    if here in (None, made):
        return None
    return f"made with {package}, and {name} {here} is installed: pip install '{name}=={made}'"


@cache
def _installed_version(package: str) -> str | None:
    return version(package)
