"""Runs scripts and commands in processes of their own that need not import the libraries again.

Each program is forked from a server that has imported what is slow to import: a fresh interpreter
state for a fraction of the five processor seconds that importing takes.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

COMMAND = "chop.cli"
"""The module behind the command `chop`."""

ROOT = str(Path(__file__).resolve().parents[1])

FORKS = multiprocessing.get_context("forkserver")
"""Forks of one server for each process of the tests, which also those of `cluster` come from."""

LIBRARIES = (
    *("torch", "torch._dynamo", "torch.distributed.tensor", "numpy", "scipy.optimize"),
    *("sklearn.datasets", "sklearn.model_selection", "optuna", "matplotlib.pyplot", "datasets"),
    *("transformers.models.bert.modeling_bert", "transformers.trainer", "typer.rich_utils"),
    *("rich.table", "rich.progress", "pydantic.fields", "sympy.tensor.tensor"),
)
"""What is slow to import, and the first time to compile."""

FORKS.set_forkserver_preload(
    [
        *LIBRARIES,
        *(
            "chop.cli.app",
            "chop.passes",
            "chop.actions.compress.job",
            "chop.actions.search.precision",
        ),
        *("chop.actions.sweep.quantize", "chop.actions.bench.job"),
        *("chop.distributed.apply", "chop.distributed.load", "chop.distributed.process"),
    ]
)


@dataclass(frozen=True)
class Finished:
    """What a program left.

    Args:
        returncode: its exit status, negative for the signal that ended it.
        stdout: what it printed.
        stderr: its messages, a traceback included.
    """

    returncode: int
    stdout: str
    stderr: str


def _execute(program: str, arguments: list[str], environ: dict[str, str], out: str) -> None:
    gc.freeze()  # what the server has imported: the program's collections need not look at it
    os.environ.clear()
    os.environ.update(environ)
    tempfile.tempdir = None  # which the server has asked for, with its own environment
    for number, stream in ((1, "stdout"), (2, "stderr")):
        opened = os.open(f"{out}/{stream}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    sys.argv = [program, *arguments]
    try:
        if program.endswith(".py"):
            sys.path.insert(0, str(Path(program).parent))
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    finally:
        sys.stdout.flush()


@contextlib.contextmanager
def started(
    program: str | Path, *arguments: object, told: Path | None = None
) -> Iterator[BaseProcess]:
    """A running program, killed at the end if it has not ended.

    Args:
        program: a script's path, or a module's name such as `COMMAND`.
        arguments: its command line.
        told: a folder for the files `stdout` and `stderr`; None: one that is gone at the end.
    """
    with tempfile.TemporaryDirectory(prefix="chop-program-") as out:
        process = _start(program, arguments, str(told or out))
        try:
            yield process
        finally:
            process.kill()
            process.join()


def run(program: str | Path, *arguments: object, timeout: float = 600) -> Finished:
    """Runs a program to its end; arguments as for `started`.

    Raises:
        TimeoutError: it took more than `timeout` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="chop-program-") as out:
        process = _start(program, arguments, out)
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise TimeoutError(f"{program} took more than {timeout} s")
        texts = ((Path(out) / name).read_text() for name in ("stdout", "stderr"))
        return Finished(process.exitcode, *texts)


def chop(*arguments: object, code: int = 0) -> str:
    """What the command prints where it succeeds, or its messages where it exits with `code`."""
    done = run(COMMAND, *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def _start(program: str | Path, arguments: tuple[object, ...], out: str) -> BaseProcess:
    for name in ("stdout", "stderr"):
        (Path(out) / name).touch()
    # The same width as in a pipe, whatever terminal the tests run in.
    environ = {**os.environ, "COLUMNS": os.environ.get("COLUMNS", "80")}
    texts = [str(argument) for argument in arguments]
    process = FORKS.Process(target=_execute, args=(str(program), texts, environ, out))
    # The new process finds this module on the path that it is given, which pytest leaves as it is.
    sys.path.append(ROOT)
    try:
        process.start()
    finally:
        sys.path.remove(ROOT)
    return process


if __name__ == "__main__":
    # Once for all workers of the tests, which would compile them side by side.
    for library in LIBRARIES:
        importlib.import_module(library)
