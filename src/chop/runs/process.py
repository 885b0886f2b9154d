"""Identity and liveness of processes."""

from __future__ import annotations

import os
import re
from typing import Literal

from chop.base.files.temporary import started, system_id
from chop.errors import ConfigError, describe

Status = Literal["running", "stopped", "ended", "elsewhere"]


def process_id(pid: int | None = None) -> str:
    """Returns the identity of a process, distinct from later processes with the same PID.

    Args:
        pid: process id. None for this process.
    Returns: `SYSTEM:PID:STARTED`: the boot of the machine and the PID namespace (each container
        has its own), the PID, and the start time by a monotonic clock.
    """
    number = os.getpid() if pid is None else pid
    return f"{system_id()}:{number}:{start_time(number)}"


def process_status(identity: str) -> Status:
    """Returns whether a process runs; "elsewhere" for another machine or container.

    Args:
        identity: identity from `process_id`.
    Raises:
        ConfigError: if it is malformed.
    """
    import psutil

    parts = identity.rsplit(":", 2)
    if len(parts) != 3 or not re.fullmatch(r"[0-9]{1,9}", parts[1]):
        raise ConfigError(f"process: got {describe(identity)}, expected SYSTEM:PID:STARTED.")
    system, number, started = parts
    if system != system_id():
        return "elsewhere"
    try:
        status, since = psutil.Process(int(number)).status(), start_time(int(number))
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return "ended"
    if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) or since != started:
        return "ended"
    return "stopped" if status == psutil.STATUS_STOPPED else "running"


def start_time(pid: int) -> str:
    """Returns the start time of a process; on Linux, in clock ticks since boot (proc(5), field 22).

    Seconds since 1970 would change whenever the clock of the machine is set.
    """
    import psutil

    if psutil.LINUX:
        return started(pid)
    return f"{psutil.Process(pid).create_time():.0f}"
