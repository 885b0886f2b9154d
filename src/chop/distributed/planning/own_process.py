"""Planning in a process of its own: what it simulates never meets processes that are joined."""

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
    """What a function gives, called in a fork of this process that has joined no others.

    Args:
        function: takes what to call with the text of each phase; it uses no GPU.
        report: gets these texts, in this process.
    Returns: the result, which pickles.

    Raises:
        UnavailableError: the system does not fork.
        DistributedError: the process was ended, by a signal or for want of memory.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        raise UnavailableError("a plan is searched in a process of its own, which needs fork().")
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    args = (function, theirs, os.getpid())
    process = context.Process(target=_work, args=args, daemon=True)
    with warnings.catch_warnings():
        # Threads of torch and gloo are not missed: the child computes on one, and sends nothing.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    theirs.close()
    try:
        while (message := ours.recv())[0] == "phase":
            report(message[1])
        kind, found = message
        if kind == "error":
            raise found
        return cast(T, found)
    except EOFError:
        process.join(END_SECONDS)
        raise DistributedError(
            f"the process that searched for a plan ended with code {process.exitcode}."
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
        found = "result", function(lambda text: pipe.send(("phase", text)))
    except KeyboardInterrupt:
        return
    except Exception as error:
        found = "error", _picklable(error)
    pipe.send(found)


def _picklable(error: Exception) -> Exception:
    """The error with its traceback as a note, or one that says the same if it does not pickle."""
    note = traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # anything: errors of torch refer to operators, those of users to all else
        message = f"the search for a plan failed: {type(error).__name__}: {first_line(error)}"
        error = DistributedError(message)
    error.add_note(note)
    return error
