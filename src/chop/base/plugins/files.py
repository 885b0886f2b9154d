"""Sentences on files that were made with extensions of packages that are not installed here."""

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
    """Reads a file's settings: the error on a name that is unknown here names its package.

    Args:
        names: result of `names_in_use`, from the file; anything else of an older or foreign file.
        where: the file, for the message.
    Raises:
        PluginError: a name of `names` is unknown here.
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
    for group, found in names.items() if isinstance(names, Mapping) else ():
        for name, package in found.items() if isinstance(found, Mapping) else ():
            is_absent = isinstance(package, str) and (" " in package or package not in sys.modules)
            if group in GROUPS and is_absent:
                yield group, name, package


def missing(package: str) -> str:
    """Returns the end of a sentence on an extension whose package cannot be found.

    >>> missing("mypkg 0.3")
    'is of the package mypkg 0.3, which is not installed: pip install mypkg'
    >>> missing("mymodule")
    'is of the module mymodule, which is not imported: import it, or give --import mymodule'

    Args:
        package: result of `get_package`; a module that no package installed has no version.
    """
    name, _, made = package.partition(" ")
    if not made:
        return f"is of the module {name}, which is not imported: import it, or give --import {name}"
    if (here := _installed_version(name)) is None:
        return f"is of the package {package}, which is not installed: pip install {name}"
    if here == made:
        again = f"pip install {name} --force-reinstall"
        return f"is of the package {package}, which has lost it: {again}"
    other = f"{name} {here} is installed and has none of that name"
    return f"is of the package {package}, and {other}: pip install '{name}=={made}'"


def other_version(package: str) -> str | None:
    """Returns a sentence part on another installed version of a package; None: it is the same.

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
