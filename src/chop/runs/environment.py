"""Environment of a run: machine, package versions, and variables that affect results."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chop.base.installed import version

PACKAGES = ("torch", "mase-chop", "transformers", "triton")
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TRITON_INTERPRET")


def read_environment() -> dict[str, Any]:
    """Returns the environment needed to judge or reproduce a result of this process."""
    return {
        "time": now(),
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: installed for name in PACKAGES if (installed := version(name))},
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def now() -> str:
    """Returns the UTC time in ISO 8601 with seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def processor_name() -> str:
    """Returns the processor name from the system, or the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
