"""On what a measurement was taken."""

from __future__ import annotations

import os
from typing import Any

import torch

from chop import runs
from chop.base.native import LOADED


def environment(device: torch.device, threads: int) -> dict[str, Any]:
    """What a reader needs to judge a time, or to take it again.

    `device` names the GPU or the processor, `instructions` the widest set that torch uses on the
    CPU, `threads` those of torch.
    """
    return {
        **runs.read_environment(),
        "device": _device_name(device),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": threads,
    }


def load() -> float | None:
    """Load average of the last minute, in processes; None where the system has none."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


def kernels() -> str:
    """Which C++ kernels this process has loaded; tensors that stay small never compile them."""
    return "; ".join(LOADED.values()) or "not loaded"


def _device_name(device: torch.device) -> str:
    """What a person calls the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return runs.processor_name() if device.type == "cpu" else str(device)
