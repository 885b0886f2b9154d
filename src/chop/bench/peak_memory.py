"""Peak memory of a call."""

from __future__ import annotations

from pathlib import Path

import torch

from chop.bench.clock import Call

PROC = Path("/proc/self")
RESET_HIGH_WATER = "5"
"""Value that resets the high-water mark, see proc_pid_clear_refs(5)."""


def peak_bytes(call: Call, device: torch.device) -> int | None:
    """Returns the peak memory of one call beyond the memory held before it, in bytes.

    On a GPU, this is memory handed out by torch's allocator. On a CPU, it is the growth of the
    resident set, a lower bound, because the process may reuse freed memory. None if the
    operating system does not report it.
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
    """Returns the resident set in bytes; "VmHWM" is its peak since the last reset."""
    try:
        lines = (PROC / "status").read_text().splitlines()
    except OSError:
        return None
    sizes = [int(line.split()[1]) for line in lines if line.startswith(f"{field}:")]
    return 1024 * sizes[0] if sizes else None


def reset_high_water() -> bool:
    """Resets "VmHWM" to the resident set. Returns false if the system does not support it."""
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
