"""Number formats from names, settings and keys, and settings for files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import lru_cache
from string import digits
from typing import Any

from chop.base.files.documents import parse_json
from chop.base.notices import warn_once
from chop.base.plugins import OWN, PROGRAM, PluginError, get_package, missing, other_version
from chop.config import parse, with_checked_arguments
from chop.errors import ConfigError, describe, did_you_mean
from chop.formats.base import REGISTRY, NumberFormat

PACKAGE = "package"
"""Key in files for the name and version of the package that defines a format."""


@with_checked_arguments
def get_format(name: str | None) -> type[NumberFormat]:
    """Returns the format class of a name; None is the identity format `float`.

    Raises:
        ConfigError: if no format has that name, or its class is not a frozen dataclass.
    """
    name = "float" if name is None else str(name)
    if name not in REGISTRY:
        REGISTRY.import_all()  # packages declare names, and their classes have aliases
    if name not in REGISTRY:
        if ":" in name or name[:1].isdigit():
            raise ConfigError(
                f"unknown number format '{name}': expected a name. Give the fields as keys beside "
                "it, or pass a text such as 'mxint:width=4' or '8.auto' to "
                "chop.formats.parse_format_string."
            )
        near = did_you_mean(name.rstrip(digits) or name, REGISTRY)  # int8: integer, not mxint
        own = (
            ""
            if near.startswith("did")
            else " A format of your own module needs --import MODULE (in Python: import it)."
        )
        raise ConfigError(f"unknown number format '{name}': {near}{own}")
    kind = REGISTRY[name]
    if not dataclasses.is_dataclass(kind) or kind.__setattr__ is object.__setattr__:
        raise ConfigError(
            f"number format '{name}': expected a frozen dataclass; write @dataclass(frozen=True) "
            f"above the class {kind.__name__}."
        )
    return kind


@with_checked_arguments
def parse_format(settings: Any, where: str = "format") -> NumberFormat:
    """Parses a format from an instance, a name, None, or a mapping with `name` and fields.

    If a mapping from a file names an unknown format, `PACKAGE` names the package to install.

    Args:
        settings: format, name, None for `float`, or mapping as in a config.
        where: owner of the format, for messages.

    >>> parse_format({"name": "integer", "width": 8, "frac_width": 4}).label
    'integer 8.4'

    Raises:
        ConfigError: if a name or key is unknown, a key is missing, or a type is wrong.
    """
    if isinstance(settings, NumberFormat):
        return settings
    if settings is None or isinstance(settings, str):
        settings = {"name": settings}
    if not isinstance(settings, Mapping):
        raise ConfigError(
            f"{where}: expected a format, a name or a mapping, got {describe(settings)}."
        )
    fields = {key: value for key, value in settings.items() if key not in ("name", PACKAGE)}
    if PACKAGE in settings and settings.get("name") not in REGISTRY:
        raise PluginError(
            f"{where}: the number format '{settings.get('name')}' {missing(str(settings[PACKAGE]))}"
        )
    if fields and "name" not in settings:
        raise ConfigError(f"{where}: missing key 'name' of the format beside {min(fields)!r}.")
    other = other_version(str(settings[PACKAGE])) if PACKAGE in settings else None
    try:
        number_format = parse(get_format(settings.get("name")), fields, where)
    except ConfigError as error:
        if other is None:
            raise
        raise PluginError(f"{str(error).rstrip('.')} ({other}).") from error
    if other is not None:
        warn_once(f"The number format '{settings['name']}' may differ: the file was {other}.")
    return number_format


@with_checked_arguments
def stored_settings(number_format: NumberFormat) -> dict[str, Any]:
    """Returns the settings of a format for a file, with the package that defines it.

    Args:
        number_format: any format; chop's own formats have no package entry.
    """
    settings = json.loads(number_format.key)
    package = get_package(type(number_format))
    return settings if package in (OWN, PROGRAM) else {**settings, PACKAGE: package}


@lru_cache(maxsize=4096)
@with_checked_arguments
def from_key(key: str) -> NumberFormat:
    """Returns the format of a key."""
    return parse_format(parse_json(key))
