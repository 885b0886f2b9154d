"""Settings in TOML files, and under the names of MASE."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from chop.base.files.documents import read_toml
from chop.errors import ConfigError, describe

NA = "NA"
"""Value that stands for None in TOML files of MASE."""
log = logging.getLogger(__name__)


def load_toml(path: str | Path) -> dict[str, Any]:
    """Reads a TOML file.

    Raises:
        ConfigError: if the file is missing or is not TOML; the message has the line.
    """
    if not isinstance(path, str | Path):
        raise ConfigError(f"config file: expected a str or Path, got {describe(path)}.")
    try:
        return read_toml(path, "settings")
    except FileNotFoundError:
        raise ConfigError(f"config file '{path}' does not exist.") from None
    except OSError as error:
        raise ConfigError(f"config file '{path}' cannot be read: {error.strerror}.") from None
    except ConfigError as error:
        if Path(path).suffix == ".json":
            raise ConfigError(
                f"config file '{path}': expected TOML, with a line such as model = 'cnn' for each "
                "setting, got a file of JSON."
            ) from None
        is_escape = "hex value" in str(error) or "Unescaped" in str(error)
        advice = "; write paths with /, since a backslash needs single quotes" * is_escape
        raise ConfigError(f"config file '{path}' is not valid TOML: {error}{advice}.") from None


def without_na(settings: Any) -> Any:
    """Returns a deep copy of the settings with None in place of the "NA" of MASE.

    >>> without_na({"mean": "NA", "block_size": [1, 16]})
    {'mean': None, 'block_size': [1, 16]}
    """
    if type(settings) is dict:
        return {key: without_na(value) for key, value in settings.items()}
    if type(settings) in (list, tuple):
        return type(settings)(without_na(value) for value in settings)
    return None if isinstance(settings, str) and settings == NA else settings


def load_config(config_path: str | Path) -> dict[str, Any]:
    """Reads a TOML file, with None in place of "NA". A pass takes one of its tables.

    Raises:
        ConfigError: if the file is missing or is not TOML; the message has the line.

    Example::

        mg, _ = quantize_transform_pass(mg, load_config("fixed.toml")["passes"]["quantize"])
    """
    settings: dict[str, Any] = without_na(load_toml(config_path))
    return settings


def ignoring(settings: Mapping[str, Any], keys: Collection[str], where: str) -> dict[str, Any]:
    """Returns the settings without `keys`; the debug log lists the ignored ones."""
    ignored = [key for key in settings if key in keys]
    if ignored:
        log.debug("%s: %s: settings of MASE without an effect in chop.", where, ", ".join(ignored))
    return {key: value for key, value in settings.items() if key not in keys}


def renamed(settings: Mapping[str, Any], aliases: Mapping[str, str], where: str) -> dict[str, Any]:
    """Returns the settings under the names of `chop`.

    Args:
        settings: settings under the names of `chop` or under aliases.
        aliases: name of `chop` by alias.
        where: subject of the error message.

    Raises:
        ConfigError: if a setting is given under two names.

    >>> renamed({"r": 4}, {"r": "rank"}, "lora")
    {'rank': 4}
    """
    result: dict[str, Any] = {}
    for key, value in settings.items():
        name = aliases.get(key, key)
        if name in result:
            alias = next(each for each in settings if aliases.get(each) == name)
            raise ConfigError(f"{where}: '{name}' is given twice, once as '{alias}'; drop one.")
        result[name] = value
    return result
