"""Path settings of interface passes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chop.config import convert
from chop.errors import ConfigError, did_you_mean

GRAPH_FILE = "graph_module"
"""Name of an exported graph in its folder, without suffix."""


def settings_path(pass_args: Any, key: str, where: str) -> Path:
    """Returns the file or folder in the settings, given directly or under `key`.

    Raises:
        ConfigError: if there is no path.
    """
    if isinstance(pass_args, Mapping):
        for name in pass_args:
            if name != key:
                raise ConfigError(f"{where}: unknown key '{name}': {did_you_mean(name, [key])}")
        pass_args = pass_args.get(key)
    return Path(convert(pass_args, Path, f"{where}: {key}"))
