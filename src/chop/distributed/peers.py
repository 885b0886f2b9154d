"""Failure of other processes: detection in errors, and heartbeats."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from chop.runs.heartbeats import SilenceCounter

if TYPE_CHECKING:
    from torch.distributed import Store

SILENCE_S = 20.0
"""Seconds without a heartbeat after which a process counts as hung or ended."""
PERIOD_S = 2.0
GRACE_S = 3.0
"""Seconds for the main thread to raise an error that a collective reports."""
AWAY = b"away"
_GLOO_DETAIL = re.compile(r"\.cc:\d+\] (.*?)(?:\. This is typical|$)", re.MULTILINE)


def is_peer_failure(error: BaseException) -> bool:
    """Returns whether a collective failed because another process ended or does not respond.

    torch 2.13 has no class for this in gloo: it raises a RuntimeError with the C++ file of the
    transport. The store and NCCL raise subclasses of `torch.distributed.DistError`.

    >>> is_peer_failure(RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer"))
    True
    """
    from torch.distributed import DistError

    is_gloo = isinstance(error, RuntimeError) and "gloo/transport" in str(error)
    return is_gloo or isinstance(error, DistError)


def peer_failure_text(error: BaseException, what: str) -> str:
    """Formats such an error as one sentence.

    Args:
        error: see `is_peer_failure`.
        what: activity of this process.

    >>> text = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:7. This is typical"
    >>> peer_failure_text(RuntimeError(text), "the forward")
    'another process ended or hangs during the forward (gloo: Connection closed by peer [::1]:7).'
    """
    detail = _GLOO_DETAIL.search(str(error))
    said = f"gloo: {detail[1]}" if detail else (str(error).splitlines() or [""])[0]
    return f"another process ended or hangs during {what} ({said})."


@dataclass(frozen=True)
class Peers:
    """Processes of a run, and the store of their heartbeats.

    Attributes:
        store: separate connection, which is not blocked by the setup of a collective.
        rank: rank of this process.
        processes: number of processes.
    """

    store: Store
    rank: int
    processes: int

    @classmethod
    def join(cls, store: Store, rank: int, processes: int) -> Peers:
        """Registers this process in the store; entries of the others exist after a barrier."""
        from torch.distributed import PrefixStore

        own = store.clone()  # type: ignore[attr-defined]
        own.set_timeout(timedelta(seconds=SILENCE_S))
        peers = cls(PrefixStore("chop/heartbeat", own), rank, processes)
        peers.note(AWAY)
        return peers

    def note(self, entry: bytes) -> None:
        """Writes the entry of this process."""
        self.store.set(str(self.rank), entry)  # type: ignore[arg-type]

    def entries(self) -> dict[int, bytes]:
        """Returns the entries of the other processes by rank."""
        others = (rank for rank in range(self.processes) if rank != self.rank)
        return {rank: self.store.get(str(rank)) for rank in others}


class Heartbeat(threading.Thread):
    """Thread that writes a heartbeat every two seconds, and ends this process if another's stop.

    A collective that waits for a hung process cannot be interrupted. The thread therefore prints
    one sentence and exits the process with code 1.

    Args:
        peers: processes to watch, while they send heartbeats too.
        what: activity, for the sentence.
    """

    def __init__(self, peers: Peers, what: str) -> None:
        super().__init__(daemon=True, name="heartbeat")
        self._peers, self._what = peers, what
        self._stopped = threading.Event()
        self._silence = SilenceCounter[int]()

    def run(self) -> None:
        """Sends and checks heartbeats until `leave`."""
        from torch.distributed import DistError, DistNetworkError

        count = 0
        while True:
            count += 1
            try:
                self._peers.note(b"%d %d" % (id(self), count))
                silent = self._silent()
            except DistNetworkError:
                return  # the process with the store ended, which collectives will report
            except DistError:
                silent = "the process with the store of the run"
            if silent and not self._stopped.wait(GRACE_S):
                self._exit(silent)
            if self._stopped.wait(PERIOD_S):
                return

    def leave(self, done: bool) -> None:
        """Stops the heartbeats.

        Args:
            done: no other process needs this one any more. Otherwise the others report its end.
        """
        from torch.distributed import DistError

        self._stopped.set()
        if done:
            self.join(PERIOD_S)
            with contextlib.suppress(DistError):  # the store may have ended already
                self._peers.note(AWAY)

    def _silent(self) -> str:
        entries = self._peers.entries().items()
        present = {rank: entry for rank, entry in entries if entry != AWAY}
        self._silence.observe(present, longest_s=2 * PERIOD_S)
        silent = (rank for rank, seconds in self._silence.seconds.items() if seconds > SILENCE_S)
        return next((f"process {rank} of {self._peers.processes}" for rank in silent), "")

    def _exit(self, silent: str) -> None:
        text = (
            f"error: {silent} does not respond during {self._what}: no heartbeat for "
            f"{SILENCE_S:.0f} s; it ended or hangs.\n"
        )
        os.write(2, text.encode())  # the main thread may have the lock of sys.stderr
        os._exit(1)
