"""Workers: identity, heartbeats, failure detection, and a pool of forked processes."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from chop.base.children import end_with
from chop.errors import ChopError, UnavailableError
from chop.runs.heartbeats import SilenceCounter
from chop.runs.process import process_id, process_status
from chop.search.ledger import NO_WORKER, RUNNING, Ledger, Row

HEARTBEAT_SECONDS = 10.0
"""Seconds between two heartbeats of a worker, and between two polls of the others'."""
SILENT_SECONDS = 120.0
"""Timeout of the heartbeats of a worker on another machine, or of a stopped one."""
RUNNING_SECONDS = 1800.0
"""Timeout of the heartbeats of a worker on this machine whose process runs: its measure may keep
Python's lock, or it works on the folder that this one is a copy of."""
MAX_ERROR_CHARS = 4000
"""Characters of a worker's error message: a pipe buffers as many while nobody reads."""
POLL_SECONDS = 0.5
END_SECONDS = 10.0
"""Seconds from the interruption of a worker to its kill."""
REPLACEMENTS = 3
"""Replacements of killed workers, per worker."""
ACTIVE: set[str] = set()
"""Workers of this process that are running now."""
_numbers = itertools.count(1)


def new_worker() -> str:
    """A name for a run in this process, distinct from those of other runs and later processes.

    Returns: `SYSTEM:PID:STARTED:RUN`: the identity of its process and the count of its runs.
    """
    return f"{process_id()}:{next(_numbers)}"


def heartbeat_timeout(worker: str) -> float:
    """Seconds that a worker may be silent: none where its process is known to have ended."""
    process = worker.rpartition(":")[0]
    if process == process_id():
        return math.inf if worker in ACTIVE else 0.0
    status = process_status(process)
    if status == "ended":
        return 0.0
    return RUNNING_SECONDS if status == "running" else SILENT_SECONDS


class HeartbeatMonitor:
    """Heartbeat monitor: tells which workers are dead.

    A worker on this machine is dead when its process has ended. The heartbeats of any other are
    counted in the ledger; it is dead when its count stays the same for its timeout while this
    process sends its own (`SilenceCounter`): a stalled machine or server, or one that takes no
    writes, makes no worker dead.
    """

    def __init__(self) -> None:
        self._polled: float | None = None
        self._silence = SilenceCounter[str]()

    def is_due(self) -> bool:
        """True when the last poll is `HEARTBEAT_SECONDS` ago, or there was none."""
        return self._polled is None or time.monotonic() - self._polled >= HEARTBEAT_SECONDS

    def poll(self, ledger: Ledger, me: str) -> None:
        """Sends a heartbeat, and adds up the seconds in which other workers sent none."""
        ledger.heartbeat(me)
        self._silence.observe(ledger.heartbeats(), longest_s=2 * HEARTBEAT_SECONDS)
        self._polled = time.monotonic()

    def is_dead(self, name: str) -> bool:
        """True when a worker is dead, according to the polls so far.

        A worker sends a heartbeat before it claims a trial: one without any is dead.
        """
        limit = 0.0 if name == NO_WORKER else heartbeat_timeout(name)
        if limit in (0.0, math.inf) or self._polled is None:
            return limit == 0.0
        return self._silence.seconds.get(name, limit) >= limit

    def orphaned(self, ledger: Ledger) -> list[Row]:
        """Running trials whose worker is dead."""
        running = ledger.unfinished(RUNNING)
        polled = {NO_WORKER, *self._silence.seconds}
        if any(row.worker not in polled for row in running):  # one joined since the last poll
            self._silence.include(ledger.heartbeats())
        return [row for row in running if self.is_dead(row.worker)]


@contextlib.contextmanager
def heartbeat(
    ledger: Ledger, worker: str, monitor: HeartbeatMonitor, *, is_shared: bool
) -> Iterator[None]:
    """Context in which a thread sends the worker's heartbeats and polls those of the others.

    Args:
        ledger: of the study.
        worker: of this process.
        monitor: polls the other workers.
        is_shared: another process can reach the storage: otherwise no heartbeats are needed.
    """
    ACTIVE.add(worker)
    done = threading.Event()
    thread = threading.Thread(
        target=_send_heartbeats, args=(ledger, worker, monitor, done), daemon=True
    )
    try:
        if is_shared:
            monitor.poll(ledger, worker)
            thread.start()
        yield
    finally:
        ACTIVE.discard(worker)
        done.set()
        if thread.is_alive():
            thread.join()
            with contextlib.suppress(Exception):  # a storage that went away has its own error
                ledger.remove_worker(worker)


def _send_heartbeats(
    ledger: Ledger, worker: str, monitor: HeartbeatMonitor, done: threading.Event
) -> None:
    while not done.wait(HEARTBEAT_SECONDS):
        with contextlib.suppress(Exception):  # the worker's own next write says what is wrong
            monitor.poll(ledger, worker)


def run_workers(
    work: Callable[[], None],
    count: int,
    *,
    before_fork: Callable[[], None],
    on_poll: Callable[[], None],
) -> None:
    """Runs `work` in so many processes of this machine and waits for them.

    The processes are forked: a measure may be any closure, and what is loaded is shared.
    A process that is killed is replaced, a few times for each. The processes end with this one.

    Args:
        work: what each process does until nothing is left.
        count: how many.
        before_fork: lets go of what two processes must not share, as connections.
        on_poll: called twice a second meanwhile.
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
            wait([process.sentinel for process in running], timeout=POLL_SECONDS)
            on_poll()
            # A process that a measure has forked keeps the sentinel of a killed worker silent.
            for process in [p for p in running if not p.is_alive()]:
                said = _ending(process, running.pop(process))
                errors += [said] if said else []
                if said is None and not errors:
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
            process.join(END_SECONDS)
            process.kill()
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
    args = (work, theirs, os.getpid())
    process = context.Process(target=_child, args=args, daemon=False)  # type: ignore[attr-defined]
    process.start()
    theirs.close()
    return process, ours


def _child(work: Callable[[], None], pipe: Connection, parent: int) -> None:
    import torch

    end_with(parent)
    # OpenMP's threads do not survive a fork: a child that asks for several waits for ever.
    torch.set_num_threads(1)
    said = ""
    try:
        work()
    except KeyboardInterrupt:
        pass
    except ChopError as error:
        said = str(error)
    except BaseException as error:
        traceback.print_exc()
        said = f"{type(error).__name__}: {error}"
    pipe.send(said[:MAX_ERROR_CHARS])


def _ending(process: BaseProcess, pipe: Connection) -> str | None:
    """What a worker says at its end: nothing, or an error; None where it was killed, or exited."""
    process.join()
    try:
        return str(pipe.recv()) if pipe.poll() else None
    except EOFError:
        return None
    finally:
        pipe.close()
