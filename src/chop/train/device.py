"""Device selection: a CUDA GPU where there is one, or the CPU."""

from __future__ import annotations

import torch

from chop.errors import ConfigError


def usable_device(name: str | None = None) -> torch.device:
    """The device of that name, once a number has been written to it and read back.

    Args:
        name: "cpu", "cuda", "cuda:1" ...; None takes a GPU where there is one.
    Raises:
        ConfigError: there is none, or it holds no data, as "meta".
    """
    chosen = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        held = torch.zeros(1, device=chosen)
        held.item()
    except (RuntimeError, AssertionError) as error:
        found = [each for each in ("cuda", "mps", "xpu") if getattr(torch, each).is_available()]
        raise ConfigError(
            f"device '{chosen}' cannot be used here: choose from: {', '.join(['cpu', *found])}."
        ) from error
    return held.device
