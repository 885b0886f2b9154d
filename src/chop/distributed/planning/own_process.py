"""Planning in a separate process, so that simulated process groups never meet real ones."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar, cast

import torch

from chop.base.children import end_with
from chop.errors import DistributedError, UnavailableError, first_line
from chop.private.dtensor import forget_process_groups

T = TypeVar("T")
Report = Callable[[str], None]
END_SECONDS = 5.0


def in_own_process(function: Callable[[Report], T], report: Report = lambda text: None) -> T:
    """Runs a function in a fork of this process without its process group.

    Args:
        function: called with a callback for the text of each phase; it does not use a GPU.
        report: receives these texts in this process.
    Returns: the picklable result.

    Raises:
        UnavailableError: if the system does not support fork.
        DistributedError: if the process was killed, by a signal or because memory ran out.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        raise UnavailableError("the plan search runs in a separate process, which needs fork().")
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    args = (function, theirs, os.getpid())
    process = context.Process(target=_work, args=args, daemon=True)
    with warnings.catch_warnings():
        # Python warns of forks in multithreaded processes. The child needs none of the threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    theirs.close()
    try:
        while (message := ours.recv())[0] == "phase":
            report(message[1])
        kind, content = message
        if kind == "error":
            raise content
        return cast(T, content)
    except EOFError:
        process.join(END_SECONDS)
        raise DistributedError(
            f"the process of the plan search ended with code {process.exitcode}."
        ) from None
    finally:
        process.kill()
        process.join()
        ours.close()


def _work(function: Callable[[Report], Any], pipe: Connection, parent: int) -> None:
    end_with(parent)
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
    forget_process_groups()
    try:
        message = "result", function(lambda text: pipe.send(("phase", text)))
    except KeyboardInterrupt:
        return
    except Exception as error:
        message = "error", _picklable(error)
    pipe.send(message)


def _picklable(error: Exception) -> Exception:
    """Returns the error with its traceback as a note, or an equivalent picklable one."""
    note = traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # errors may refer to any object
        message = f"the plan search failed: {type(error).__name__}: {first_line(error)}"
        error = DistributedError(message)
    error.add_note(note)
    return error
