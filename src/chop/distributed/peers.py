"""Other processes that ended or hang: how their end shows in an error here, and heartbeats."""

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
"""After so long without a heartbeat a process counts as hung or gone."""
PERIOD_S = 2.0
GRACE_S = 3.0
"""For the main thread to raise by itself what a collective tells it."""
AWAY = b"away"
_GLOO_DETAIL = re.compile(r"\.cc:\d+\] (.*?)(?:\. This is typical|$)", re.MULTILINE)


def is_peer_failure(error: BaseException) -> bool:
    """Whether a collective failed because another process ended or does not answer.

    torch 2.13 has no class for it under gloo: a RuntimeError with the C++ file of the transport.
    The store and NCCL raise subclasses of `torch.distributed.DistError`.

    >>> is_peer_failure(RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer"))
    True
    """
    from torch.distributed import DistError

    is_gloo = isinstance(error, RuntimeError) and "gloo/transport" in str(error)
    return is_gloo or isinstance(error, DistError)


def peer_failure_text(error: BaseException, what: str) -> str:
    """One sentence for such an error.

    Args:
        error: see `is_peer_failure`.
        what: what this process was doing.

    >>> text = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:7. This is typical"
    >>> peer_failure_text(RuntimeError(text), "the forward")
    'another process ended or hangs during the forward (gloo: Connection closed by peer [::1]:7).'
    """
    detail = _GLOO_DETAIL.search(str(error))
    said = f"gloo: {detail[1]}" if detail else (str(error).splitlines() or [""])[0]
    return f"another process ended or hangs during {what} ({said})."


@dataclass(frozen=True)
class Peers:
    """The processes of a run, and the store in which they leave their heartbeats.

    Attributes:
        store: a connection of its own, so that no collective that is set up keeps it waiting.
        rank: of this process.
        processes: how many there are.
    """

    store: Store
    rank: int
    processes: int

    @classmethod
    def join(cls, store: Store, rank: int, processes: int) -> Peers:
        """Notes this process in the store; the others' entries are there after a barrier."""
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
        """The entries of the others by rank."""
        others = (rank for rank in range(self.processes) if rank != self.rank)
        return {rank: self.store.get(str(rank)) for rank in others}


class Heartbeat(threading.Thread):
    """Writes a heartbeat every two seconds, and ends this process where another's stay out.

    A collective that waits for a process that hangs cannot be broken off, so one sentence is
    printed and the process exits with code 1.

    Args:
        peers: the processes that are watched while they beat as well.
        what: what is going on, for the sentence.
    """

    def __init__(self, peers: Peers, what: str) -> None:
        super().__init__(daemon=True, name="heartbeat")
        self._peers, self._what = peers, what
        self._left = threading.Event()
        self._silence = SilenceCounter[int]()

    def run(self) -> None:
        """Beats until `leave`."""
        from torch.distributed import DistError, DistNetworkError

        count = 0
        while True:
            count += 1
            try:
                self._peers.note(b"%d %d" % (id(self), count))
                silent = self._silent()
            except DistNetworkError:
                return  # the process that has the store ended: collectives will say so
            except DistError:
                silent = "the process that has the store of the run"
            if silent and not self._left.wait(GRACE_S):
                self._exit(silent)
            if self._left.wait(PERIOD_S):
                return

    def leave(self, done: bool) -> None:
        """Stops beating.

        Args:
            done: nobody needs this process any more; else the others will miss it.
        """
        from torch.distributed import DistError

        self._left.set()
        if done:
            self.join(PERIOD_S)
            with contextlib.suppress(DistError):  # nobody is left who would read it
                self._peers.note(AWAY)

    def _silent(self) -> str:
        entries = self._peers.entries().items()
        present = {rank: entry for rank, entry in entries if entry != AWAY}
        self._silence.observe(present, longest_s=2 * PERIOD_S)
        silent = (rank for rank, seconds in self._silence.seconds.items() if seconds > SILENCE_S)
        return next((f"process {rank} of {self._peers.processes}" for rank in silent), "")

    def _exit(self, silent: str) -> None:
        text = (
            f"error: {silent} does not answer during {self._what}: no heartbeat for "
            f"{SILENCE_S:.0f} s; it ended or hangs.\n"
        )
        os.write(2, text.encode())  # the main thread may have the lock of sys.stderr
        os._exit(1)
