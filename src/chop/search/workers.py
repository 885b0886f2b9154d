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
"""Seconds between heartbeats of a worker, and between its polls of other workers."""
SILENT_SECONDS = 120.0
"""Heartbeat timeout of a worker on another machine, or of a stopped process."""
RUNNING_SECONDS = 1800.0
"""Heartbeat timeout of a worker on this machine whose process is running.

Its objective may hold Python's lock, or it may use the original of a copied folder.
"""
MAX_ERROR_CHARS = 4000
"""Maximum length of a worker's error message, limited by the pipe buffer."""
POLL_SECONDS = 0.5
END_SECONDS = 10.0
"""Seconds between the interruption and the kill of a worker."""
REPLACEMENTS = 3
"""Maximum number of replacements per killed worker."""
ACTIVE: set[str] = set()
"""Running workers of this process."""
_numbers = itertools.count(1)


def new_worker() -> str:
    """Returns a name for a run in this process, unique among runs and later processes.

    Returns: `SYSTEM:PID:STARTED:RUN`, the identity of the process and its run count.
    """
    return f"{process_id()}:{next(_numbers)}"


def heartbeat_timeout(worker: str) -> float:
    """Returns the heartbeat timeout in seconds; 0 if the process is known to have ended."""
    process = worker.rpartition(":")[0]
    if process == process_id():
        return math.inf if worker in ACTIVE else 0.0
    status = process_status(process)
    if status == "ended":
        return 0.0
    return RUNNING_SECONDS if status == "running" else SILENT_SECONDS


class HeartbeatMonitor:
    """Heartbeat monitor that detects dead workers.

    A worker on this machine is dead when its process has ended. Heartbeats of other workers are
    counted in the ledger. A worker is dead if its count stays the same during its timeout while
    this process sends its own heartbeats (`SilenceCounter`). A stalled machine, or a server that
    rejects writes, therefore makes no worker dead.
    """

    def __init__(self) -> None:
        self._polled: float | None = None
        self._silence = SilenceCounter[str]()

    def is_due(self) -> bool:
        """True if the last poll was at least `HEARTBEAT_SECONDS` ago, or there was none."""
        return self._polled is None or time.monotonic() - self._polled >= HEARTBEAT_SECONDS

    def poll(self, ledger: Ledger, me: str) -> None:
        """Sends a heartbeat, and adds up the silent seconds of other workers."""
        ledger.heartbeat(me)
        self._silence.observe(ledger.heartbeats(), longest_s=2 * HEARTBEAT_SECONDS)
        self._polled = time.monotonic()

    def is_dead(self, name: str) -> bool:
        """Returns whether a worker is dead according to the polls so far.

        Workers send a heartbeat before they claim a trial, so a worker without one is dead.
        """
        limit = 0.0 if name == NO_WORKER else heartbeat_timeout(name)
        if limit in (0.0, math.inf) or self._polled is None:
            return limit == 0.0
        return self._silence.seconds.get(name, limit) >= limit

    def orphaned(self, ledger: Ledger) -> list[Row]:
        """Returns running trials whose worker is dead."""
        running = ledger.unfinished(RUNNING)
        polled = {NO_WORKER, *self._silence.seconds}
        if any(row.worker not in polled for row in running):  # one joined since the last poll
            self._silence.include(ledger.heartbeats())
        return [row for row in running if self.is_dead(row.worker)]


@contextlib.contextmanager
def heartbeat(
    ledger: Ledger, worker: str, monitor: HeartbeatMonitor, *, is_shared: bool
) -> Iterator[None]:
    """Context manager with a thread that sends the worker's heartbeats and polls other workers.

    Args:
        ledger: ledger of the study.
        worker: worker in this process.
        monitor: monitor that polls other workers.
        is_shared: True if other processes can access the storage. Otherwise no heartbeats are sent.
    """
    ACTIVE.add(worker)
    done = threading.Event()
    thread = threading.Thread(
        target=_send_heartbeats, args=(ledger, worker, monitor, done), daemon=True
    )
    try:
        if is_shared:
            # Before the first claim, because a worker without a heartbeat counts as dead.
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
    """Runs `work` in `count` processes on this machine and waits for them.

    The processes are forked, so the objective can be any closure and loaded data are shared. A
    killed process is replaced a limited number of times. All processes end with this one.

    Args:
        work: function of each process.
        count: number of processes.
        before_fork: closes resources that processes must not share, such as connections.
        on_poll: called twice a second while waiting.
    Raises:
        UnavailableError: if processes cannot be forked here.
        ChopError: if a worker ended with an error, or workers were killed repeatedly.
    """
    start = functools.partial(_start, _forking(), work, before_fork)
    kills = 0
    running = dict(start() for _ in range(count))
    errors: list[str] = []
    try:
        while running:
            wait([process.sentinel for process in running], timeout=POLL_SECONDS)
            on_poll()
            # A process forked by an objective keeps the sentinel of a killed worker open.
            for process in [p for p in running if not p.is_alive()]:
                message = _ending(process, running.pop(process))
                errors += [message] if message else []
                if message is None and not errors:
                    kills += 1
                    if kills > REPLACEMENTS * count:
                        errors.append(f"it was killed, like {kills - 1} before it (out of memory?)")
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
            "parallel workers need a system with fork (Linux, macOS); start `chop search worker "
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
    # OpenMP threads do not survive a fork: a child that requests several would hang.
    torch.set_num_threads(1)
    message = ""
    try:
        work()
    except KeyboardInterrupt:
        pass
    except ChopError as error:
        message = str(error)
    except BaseException as error:
        traceback.print_exc()
        message = f"{type(error).__name__}: {error}"
    pipe.send(message[:MAX_ERROR_CHARS])


def _ending(process: BaseProcess, pipe: Connection) -> str | None:
    """Returns a worker's error or "" at its end; None if it was killed or exited."""
    process.join()
    try:
        return str(pipe.recv()) if pipe.poll() else None
    except EOFError:
        return None
    finally:
        pipe.close()
