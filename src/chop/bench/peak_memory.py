"""Peak memory of a call."""

from __future__ import annotations

from pathlib import Path

import torch

from chop.bench.clock import Call

PROC = Path("/proc/self")
RESET_HIGH_WATER = "5"
"""What the kernel takes as the order to do so, see proc_pid_clear_refs(5)."""


def peak_bytes(call: Call, device: torch.device) -> int | None:
    """The most that one call holds at once, beyond what was held before it.

    On a GPU what torch's allocator hands out. On a CPU the growth of the resident set, in steps
    of some pages: a lower bound, since memory that the process has freed and kept is used again.
    None where the system does not tell.
    """
    if device.type == "cuda":
        return _allocated(call, device)
    if not reset_high_water():
        return None
    before = resident_bytes("VmRSS")
    call()
    after = resident_bytes("VmHWM")
    return None if before is None or after is None else max(0, after - before)


def resident_bytes(field: str = "VmRSS") -> int | None:
    """Of this process: what is resident now, or with "VmHWM" the most since the last reset."""
    try:
        lines = (PROC / "status").read_text().splitlines()
    except OSError:
        return None
    sizes = [int(line.split()[1]) for line in lines if line.startswith(f"{field}:")]
    return 1024 * sizes[0] if sizes else None


def reset_high_water() -> bool:
    """Lets "VmHWM" start anew from what is resident now; False where the system cannot."""
    try:
        (PROC / "clear_refs").write_text(RESET_HIGH_WATER)
    except OSError:
        return False
    return True


def _allocated(call: Call, device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
