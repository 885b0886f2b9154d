"""Runs a function in a new Python process, with its own settings and memory."""

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
    """Runs `function(*arguments)` in a new process that has imported only its module.

    Args:
        function: function at the top level of its module.
        arguments: values that JSON can represent, as the result has to be.
        variables: environment variables, added to those of this process.
    Raises:
        RuntimeError: if the function fails; the message is the last line of its standard error.
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
        raise RuntimeError(f"{function.__name__} failed in its own process: {reason}")
    return json.loads(done.stdout.splitlines()[-1])


def answer() -> None:
    """Entry point of the new process: computes the result and writes it as one line."""
    module = importlib.import_module(sys.argv[MODULE])
    result = getattr(module, sys.argv[FUNCTION])(*json.loads(sys.argv[ARGUMENTS]))
    sys.stdout.write(f"\n{json.dumps(result)}\n")
