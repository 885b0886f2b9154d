"""Child processes that end together with their parent.

A killed process cannot end its children, so the children watch their parent: Python children by a
thread (`end_with`), other programs by a supervisor process. This file is the supervisor program,
and imports only the standard library.
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
    """Ends this process soon after its parent, or at once if the parent has already ended.

    Args:
        parent: process id of the parent as known by the parent itself. If the parent has ended
            before the call, this process has another parent id.
        group: ends all processes in the process group.
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
    """Runs a program in its own session and captures its output as text.

    A time limit, Ctrl-C, or the end of this process also ends the program and its children.

    Args:
        command: the program and its arguments.
        folder: working folder. None for the current one.
        seconds: time limit. None for no limit.
        supervised: ends the program if this process is killed. Not needed for programs that take
            milliseconds or call `end_with`. A supervisor takes some 30 ms.
    Raises:
        FileNotFoundError: if the program does not exist.
        TimeoutExpired: if the program exceeds the time limit.
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
            # Compiler drivers start further processes, which would outlive the driver.
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
    """Runs a command and returns its exit code, or ends with it if the parent has ended."""
    end_with(parent, group=True)
    code = subprocess.call(command)
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(_supervise(int(sys.argv[1]), sys.argv[2:]))
