"""Child processes: each ends with the process that started it, however that ends.

A process that is killed cannot end what it has started. So children look for it: Python's own by a
thread, `end_with`; other programs by a supervisor between the two, which is this file, run as a
program. It imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

POLL_SECONDS = 0.5


def end_with(parent: int, group: bool = False) -> None:
    """Ends this process soon after its parent; at once where that has ended already.

    Args:
        parent: number of the process that started this one, from there: where it has ended before
            the call, this process has another parent.
        group: ends all processes of the group of this one.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_SECONDS)
        if group and hasattr(os, "killpg"):  # Windows has no groups
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent").start()


def run(
    command: Sequence[str],
    folder: Path | None = None,
    seconds: float | None = None,
    supervised: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Runs a program in a session of its own; what it prints is text.

    Whatever ends the call, a time limit, Ctrl-C or the end of this process, also ends the program
    and all that it has started.

    Args:
        command: the program and its arguments.
        folder: to run in; None for the working folder.
        seconds: time limit; None for none.
        supervised: whether it ends with a killed parent: not needed for what takes milliseconds,
            or calls `end_with`. A supervisor takes some 30 ms.
    Raises:
        FileNotFoundError: there is no such program.
        TimeoutExpired: it takes longer.
    """
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(command[0])
    if supervised:
        program = [sys.executable, "-I", "-S", __file__, str(os.getpid())]
        command = [*program, *command]
    with subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            printed, messages = process.communicate(timeout=seconds)
        except BaseException:
            # The driver of a compiler starts processes of its own, which would go on without it.
            with contextlib.suppress(ProcessLookupError):
                _kill_group(process)
            raise
    return subprocess.CompletedProcess(command, process.returncode, printed, messages)


def _kill_group(process: subprocess.Popen[str]) -> None:
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def _supervise(parent: int, command: Sequence[str]) -> int:
    """Runs a command; ends as it does, or with it when the parent has ended."""
    end_with(parent, group=True)
    code = subprocess.call(command)
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(_supervise(int(sys.argv[1]), sys.argv[2:]))
