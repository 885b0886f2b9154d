"""What the passes on plain modules take."""

from __future__ import annotations

from torch import nn

from chop.errors import ConfigError


def check_module(module: object, where: str) -> None:
    """Raises ConfigError unless `module` is an `nn.Module`."""
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"{where}: expected an nn.Module, got {type(module).__name__}; of a MaseGraph, pass "
            "mg.model."
        )
