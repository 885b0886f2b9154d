"""Processes that measure: who they are, whether they are still there, and how several are run."""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import os
import platform
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from chop.errors import ChopError, UnavailableError
from chop.search.storage import Ledger, workers_of

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

BEAT_SECONDS = 10.0
"""Between two signs of life of a worker."""
SILENT_SECONDS = 120.0
"""A worker of another machine that was silent for so long is taken for gone."""
POLL_SECONDS = 0.5
ACTIVE: set[str] = set()
"""Workers of this process that are running now."""
_numbers = itertools.count(1)

REPLACEMENTS = 3
"""Workers that are started, for each one asked for, in the place of killed ones."""


class Worker(NamedTuple):
    """A run in a process, told apart from other runs and from a later process of the same number.

    Attributes:
        host: name of the machine.
        pid: its process number there.
        started: when the process started, by a clock that is never set.
        run: counts the runs of that process.
    """

    host: str
    pid: int
    started: str
    run: int

    @classmethod
    def new(cls) -> Worker:
        """A new run of the process that asks."""
        return cls(platform.node(), os.getpid(), _started(os.getpid()), next(_numbers))

    @classmethod
    def parse(cls, text: str) -> Worker:
        """The inverse of `str`."""
        host, pid, started, run = text.rsplit(":", 3)
        return cls(host, int(pid), started, int(run))

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.started}:{self.run}"

    def runs_here(self) -> bool:
        """True when this machine runs that very process, and it that run; a zombie is dead."""
        import psutil

        if self.pid == os.getpid():
            return str(self) in ACTIVE
        try:
            status = psutil.Process(self.pid).status()
            is_dead = status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
            return not is_dead and _started(self.pid) == self.started
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            return False


def _started(pid: int) -> str:
    """When a process started: on Linux in clock ticks since the machine did (proc(5), field 22).

    Seconds since 1970 move whenever the machine's clock is set.
    """
    import psutil

    if psutil.LINUX:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[19]
    return f"{psutil.Process(pid).create_time():.0f}"


def is_lost(trial: FrozenTrial, ledger: Ledger) -> bool:
    """True when nobody will finish a running trial.

    A trial that names nobody was made by a program that drives Optuna itself: it is lost when no
    worker but this process is left.
    """
    named = workers_of(trial)
    if named:
        return all(is_gone(worker, ledger) for worker in named)
    others = (name for name in ledger.beat_ages() if Worker.parse(name).pid != os.getpid())
    return all(is_gone(worker, ledger) for worker in others)


def is_gone(name: str, ledger: Ledger) -> bool:
    """True when a worker has ended.

    On this machine the process itself is asked; of other machines the age of the last beat counts.
    """
    worker = Worker.parse(name)
    if worker.host == platform.node():
        return not worker.runs_here()
    return ledger.beat_ages().get(name, SILENT_SECONDS) >= SILENT_SECONDS


@contextlib.contextmanager
def beating(ledger: Ledger, worker: str, *, alone: bool) -> Iterator[None]:
    """Inside, a thread tells the ledger every few seconds that the worker is alive.

    Args:
        ledger: of the study.
        worker: this process.
        alone: no other process can reach the storage: nobody needs to be told.
    """
    ACTIVE.add(worker)
    done = threading.Event()
    thread = threading.Thread(target=_beat, args=(ledger, worker, done), daemon=True)
    try:
        if not alone:
            ledger.beat(worker)
            thread.start()
        yield
    finally:
        ACTIVE.discard(worker)
        done.set()
        if thread.is_alive():
            thread.join()
            with contextlib.suppress(Exception):  # a storage that went away has its own error
                ledger.leave(worker)


def _beat(ledger: Ledger, worker: str, done: threading.Event) -> None:
    while not done.wait(BEAT_SECONDS):
        with contextlib.suppress(Exception):  # the worker's own next write says what is wrong
            ledger.beat(worker)


def run_workers(
    work: Callable[[], None],
    count: int,
    *,
    before_fork: Callable[[], None],
    watch: Callable[[], None],
    more: Callable[[], bool],
) -> None:
    """Runs `work` in so many processes of this machine and waits for them.

    The processes are forked: a measure may be any closure, and what is loaded is shared.
    A process that is killed is replaced while there is more to do.

    Args:
        work: what each process does until nothing is left.
        count: how many.
        before_fork: lets go of what two processes must not share, as connections.
        watch: called twice a second meanwhile.
        more: whether work is left for a replacement.
    Raises:
        UnavailableError: processes cannot be forked here.
        ChopError: a worker stopped by an error, which the message has, or workers are killed
            again and again.
    """
    start = functools.partial(_start, _forking(), work, before_fork)
    kills = 0
    running = dict(start() for _ in range(count))
    errors: list[str] = []
    try:
        while running:
            ready = wait([process.sentinel for process in running], timeout=POLL_SECONDS)
            watch()
            for process in [p for p in running if p.sentinel in ready]:
                errors += _ending(process, running.pop(process))
                if _was_killed(process) and more() and not errors:
                    kills += 1
                    if kills > REPLACEMENTS * count:
                        errors.append(f"it was killed, after {kills - 1} others (out of memory?)")
                    else:
                        running.update([start()])
    except BaseException:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid or 0, signal.SIGINT)
        for process in running:
            process.join()
        raise
    if errors:
        raise ChopError(f"a worker stopped: {errors[0]}")


def _forking() -> multiprocessing.context.BaseContext:
    import torch

    if "fork" not in multiprocessing.get_all_start_methods():
        raise UnavailableError(
            "workers of one run need a system that forks (Linux, macOS); start `chop search worker "
            "URL` several times instead."
        )
    if torch.cuda.is_initialized():
        raise UnavailableError(
            "this process has used the GPU and cannot be forked; start `chop search worker URL` "
            "several times instead."
        )
    return multiprocessing.get_context("fork")


def _start(
    context: multiprocessing.context.BaseContext,
    work: Callable[[], None],
    before_fork: Callable[[], None],
) -> tuple[BaseProcess, Connection]:
    before_fork()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(work, theirs), daemon=False)  # type: ignore[attr-defined]
    process.start()
    theirs.close()
    return process, ours


def _child(work: Callable[[], None], pipe: Connection) -> None:
    import torch

    # OpenMP's threads do not survive a fork: a child that asks for several waits for ever.
    torch.set_num_threads(1)
    try:
        work()
    except KeyboardInterrupt:
        pass
    except ChopError as error:
        pipe.send(str(error))
    except BaseException as error:
        traceback.print_exc()
        pipe.send(f"{type(error).__name__}: {error}")


def _ending(process: BaseProcess, pipe: Connection) -> list[str]:
    process.join()
    try:
        return [pipe.recv()] if pipe.poll() else []
    except EOFError:
        return []
    finally:
        pipe.close()


def _was_killed(process: BaseProcess) -> bool:
    return (process.exitcode or 0) < 0
