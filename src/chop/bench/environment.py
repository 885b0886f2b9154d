"""Environment of a measurement: device, instruction set, threads and load."""

from __future__ import annotations

import os
from typing import Any

import torch

from chop import runs
from chop.base.native import LOADED


def environment(device: torch.device, threads: int) -> dict[str, Any]:
    """Returns the facts that a reader needs to judge or repeat a measurement.

    `device` names the GPU or the processor, `instructions` the widest instruction set that
    torch uses on the CPU, and `threads` the number of threads of torch.
    """
    return {
        **runs.read_environment(),
        "device": _device_name(device),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": threads,
    }


def load() -> float | None:
    """Returns the load average of the last minute, in processes, or None if it is unknown."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


def kernels() -> str:
    """Names the C++ kernels that this process has loaded. Small tensors never compile them."""
    return "; ".join(LOADED.values()) or "not loaded"


def _device_name(device: torch.device) -> str:
    """Returns the product name of the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return runs.processor_name() if device.type == "cpu" else str(device)
