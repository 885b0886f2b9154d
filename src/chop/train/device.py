"""Device selection: a CUDA GPU if present, otherwise the CPU."""

from __future__ import annotations

import torch

from chop.config import convert
from chop.errors import ConfigError


def usable_device(name: str | torch.device | None = None) -> torch.device:
    """Returns a device after a write and a read of one number have succeeded on it.

    Args:
        name: "cpu", "cuda", "cuda:1" ...; None selects a GPU if present.
    Raises:
        ConfigError: if the device is missing or holds no data, like "meta".
    """
    name = convert(name, str | torch.device | None, "device")
    chosen = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        held = torch.zeros(1, device=chosen)
        held.item()
    except (RuntimeError, AssertionError, TypeError) as error:
        names = [each for each in ("cuda", "mps", "xpu") if getattr(torch, each).is_available()]
        raise ConfigError(
            f"device '{chosen}' is not available here; choose from: {', '.join(['cpu', *names])}."
        ) from error
    return held.device
