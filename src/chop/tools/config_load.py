"""TOML files as MASE's users read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chop.config import load_toml, without_na


def load_config(config_path: str | Path) -> dict[str, Any]:
    """A TOML file as nested dicts, with None where it says "NA"; a pass takes one of its tables.

    Raises:
        ConfigError: the file is missing or is not TOML; the message has the line.

    Example::

        mg, _ = quantize_transform_pass(mg, load_config("fixed.toml")["passes"]["quantize"])
    """
    return without_na(load_toml(config_path))
