"""Runs a function in a Python of its own: with other settings, or with nothing in memory yet."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

MODULE, FUNCTION, ARGUMENTS = range(1, 4)


def in_subprocess(function: Callable[..., Any], *arguments: Any, **variables: str) -> Any:
    """`function(*arguments)`, computed by a new process that has imported its module alone.

    Args:
        function: of a module, by its own name there.
        arguments: what JSON can write; so must be what the function returns.
        variables: of the environment, on top of this process's.
    Raises:
        RuntimeError: the function fails there; the message is its last line of errors.
    """
    code = "from chop.bench.subprocess import answer; answer()"
    command = [sys.executable, "-c", code, function.__module__, function.__name__]
    done = subprocess.run(
        [*command, json.dumps(arguments)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"{function.__name__} failed in a process of its own: {reason}")
    return json.loads(done.stdout.splitlines()[-1])


def answer() -> None:
    """The new process's part: writes the result as a line."""
    module = importlib.import_module(sys.argv[MODULE])
    result = getattr(module, sys.argv[FUNCTION])(*json.loads(sys.argv[ARGUMENTS]))
    sys.stdout.write(f"\n{json.dumps(result)}\n")
