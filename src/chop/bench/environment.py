"""On what a measurement was taken."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from chop.kernels.cpu.build import is_loaded, library

PACKAGES = ("torch", "mase-chop", "transformers", "triton")
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TRITON_INTERPRET")


def environment(device: torch.device, threads: int) -> dict[str, Any]:
    """What a reader needs to judge a time, or to take it again.

    `device` names the GPU or the processor, `instructions` the widest set that torch uses on the
    CPU, `threads` those of torch.
    """
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_name(device),
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": threads,
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def load() -> float | None:
    """Processes that ran or waited, averaged over the last minute; None where it is not told."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


def kernels() -> str:
    """Which C++ kernels this process has loaded; tensors that stay small never compile them."""
    return library().detail if is_loaded() else "not loaded"


def device_name(device: torch.device) -> str:
    """What a person calls the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor_name() if device.type == "cpu" else str(device)


def processor_name() -> str:
    """As the system has it, or the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
