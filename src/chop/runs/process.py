"""Identity and liveness of the process behind a run."""

from __future__ import annotations

import os
import re
from typing import Literal

from chop.base.files.temporary import started, system_id
from chop.errors import ConfigError

Status = Literal["running", "stopped", "ended", "elsewhere"]


def process_id(pid: int | None = None) -> str:
    """Identity of a process of this machine, distinct from later processes with its number.

    Args:
        pid: its number; None takes this process.
    Returns: `SYSTEM:PID:STARTED`: what numbers its processes (a boot of a machine and a PID
        namespace, of which each container has its own), its number there, and when it started by
        a clock that is never set.
    """
    number = os.getpid() if pid is None else pid
    return f"{system_id()}:{number}:{start_time(number)}"


def process_status(identity: str) -> Status:
    """Whether a process still runs; "elsewhere" where another machine or container numbers it.

    Args:
        identity: from `process_id`.
    Raises:
        ConfigError: it is malformed.
    """
    import psutil

    parts = identity.rsplit(":", 2)
    if len(parts) != 3 or not re.fullmatch(r"[0-9]{1,9}", parts[1]):
        raise ConfigError(f"process: got {identity!r}, expected SYSTEM:PID:STARTED.")
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
    """When a process started: on Linux in clock ticks since the machine did (proc(5), field 22).

    Seconds since 1970 move whenever the machine's clock is set.
    """
    import psutil

    if psutil.LINUX:
        return started(pid)
    return f"{psutil.Process(pid).create_time():.0f}"
