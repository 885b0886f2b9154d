"""Children end with the process that started them, though it is killed and can say nothing."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from chop.actions.shard.run import PROGRAM
from chop.base import children
from chop.hardware.harness.run import WORKER

LOAD = (
    f"import os, runpy, subprocess, sys, time; children = runpy.run_path({children.__file__!r}); "
)
SHELL = "echo $$ >> pids; sleep 60 & echo $! >> pids; {} wait"
CHILD = (
    "import os, runpy, sys, time; runpy.run_path({!r})['end_with'](int(sys.argv[1])); "
    "open('pids', 'a').write(f'{{os.getpid()}}\\n'); time.sleep(60)"
)
RANK = PROGRAM.replace(
    "from chop.actions.shard import run;",
    "import time; open('pids', 'a').write(f'{os.getpid()}\\n'); time.sleep(60);",
)
"""A rank of `chop shard --run` that imports for long."""
PARENTS = {
    "program": (LOAD + f"children['run'](['sh', '-c', {SHELL.format('')!r}])", 2),
    "deaf_program": (
        LOAD + f"""children['run'](['sh', '-c', {SHELL.format('trap "" HUP TERM;')!r}])""",
        2,
    ),
    "python": (
        LOAD + "subprocess.call([sys.executable, '-I', '-S', '-c', "
        f"{CHILD.format(children.__file__)!r}, str(os.getpid())])",
        1,
    ),
    "simulation": (
        LOAD + "subprocess.call([sys.executable, '-I', '-S', '-c', "
        f"{CHILD.format(str(WORKER))!r}, str(os.getpid())])",
        1,
    ),
    "rank": (
        LOAD + "subprocess.call([sys.executable, '-I', '-S', '-c', "
        f"{RANK!r}, 'folder', str(os.getpid())])",
        1,
    ),
}


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(("parent", "count"), PARENTS.values(), ids=PARENTS)
def test_what_a_killed_process_has_started_ends(parent, count, tmp_path):
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", parent], cwd=tmp_path)
    pids = tmp_path / "pids"
    wait_until(lambda: pids.exists() and len(pids.read_text().splitlines()) == count)
    found = [int(pid) for pid in pids.read_text().split()]
    assert all(map(is_alive, found))
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not any(map(is_alive, found)))


def test_a_child_whose_parent_ended_before_it_looked_ends_at_once(tmp_path):
    code = CHILD.format(children.__file__)
    command = [sys.executable, "-I", "-S", "-c", code, "1"]
    assert subprocess.call(command, cwd=tmp_path, timeout=30) == 1
    sharded = [sys.executable, "-I", "-S", "-c", RANK, str(tmp_path), "1"]
    done = subprocess.run(sharded, cwd=tmp_path, timeout=30, capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert not (tmp_path / "pids").exists()


@pytest.mark.parametrize("supervised", [True, False])
def test_a_program_ends_as_it_would_alone(supervised, tmp_path):
    def run(script, **more):
        return children.run(["sh", "-c", script], tmp_path, supervised=supervised, **more)

    done = run("pwd; echo of errors >&2; exit 7")
    assert (done.stdout, done.stderr) == (f"{tmp_path}\n", "of errors\n") and done.returncode == 7
    for number in (signal.SIGTERM, signal.SIGKILL):
        ended = run(f"kill -{number.value} $$")
        assert (ended.returncode, ended.stderr) == (-number, "")
    with pytest.raises(FileNotFoundError, match="no-such-tool"):
        children.run(["no-such-tool"], supervised=supervised)
    with pytest.raises(subprocess.TimeoutExpired):
        run("echo $$ > pid; sleep 60 & wait", seconds=0.3)
    wait_until(lambda: not is_alive(int((tmp_path / "pid").read_text())))
    assert os.getpgrp() != int((tmp_path / "pid").read_text())
