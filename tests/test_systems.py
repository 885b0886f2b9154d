"""What Linux alone has is not needed to import the library, nor to read and write files."""

import pytest

from tests.fresh import printed_by

HIDE = """
import os, signal, sys
for module in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[module] = None
for owner, names in {
    os: ("killpg", "getpgid", "setsid", "geteuid", "getuid", "getloadavg", "uname", "fork",
         "sched_getaffinity", "register_at_fork"),
    signal: ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGALRM", "setitimer", "alarm", "pthread_sigmask"),
}.items():
    for name in names:
        delattr(owner, name)
"""
IMPORTED = "from chop import MaseGraph; print(MaseGraph.__name__)"
USED = """
import tempfile, torch
from pathlib import Path
from chop.base.files import append_line, atomic_files, atomic_folder
from chop.base.files import build_lock, shared_lock, write_text
from chop.base.native import is_trusted

folder = Path(tempfile.mkdtemp())
write_text(folder / "a", "1")
append_line(folder / "a", "2")
with atomic_files(folder, "pair") as fresh:
    write_text(fresh / "b", "3")
with atomic_folder(folder / "c") as fresh:
    write_text(fresh / "d", "4")
with shared_lock(folder), build_lock(folder / "e"):
    print(sorted(path.name for path in folder.rglob("*")), is_trusted(folder / "a"))
"""
PROGRAM = """
import subprocess
from chop.base import children
try:
    children.run(["sleep", "60"], seconds=0.1, supervised=False)
except subprocess.TimeoutExpired:
    print("ended")
"""
LAUNCHER = """
from chop.distributed.process import _quiet_launcher
with _quiet_launcher(2):
    print("launched")
"""


@pytest.mark.parametrize(
    "code, told",
    [
        (IMPORTED, "MaseGraph"),
        (USED, "['.e.lock', 'a', 'b', 'c', 'd'] True"),
        (PROGRAM, "ended"),
        (LAUNCHER, "launched"),
    ],
    ids=["import", "files", "programs", "launcher"],
)
def test_the_library_runs_without_what_linux_alone_has(code, told):
    assert printed_by(HIDE + code).splitlines()[-1] == told
