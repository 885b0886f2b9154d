"""Work that is done as a user without rights, or where the test may mount file systems."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

NOBODY = 65534
NEEDS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")


def as_nobody(work: Callable[[], Any]) -> Any:
    """Runs `work` in a process of a user without rights; returns what it returned or raised."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)

    def child() -> None:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        try:
            theirs.send(work())
        except Exception as error:
            theirs.send(error)

    process = fork.Process(target=child)
    process.start()
    assert ours.poll(120)
    answer = ours.recv()
    process.join()
    return answer


def in_a_namespace(script: str, *arguments: object) -> str:
    """What a script of the shell prints that may mount; skips where that is not allowed."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("mounts cannot be unshared here")
    command = ["unshare", "-m", "sh", "-ec", script, "sh", *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout
