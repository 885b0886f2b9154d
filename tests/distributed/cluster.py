"""Runs a function on several processes of one machine, joined by gloo."""

from __future__ import annotations

import socket
import sys
import traceback
from collections.abc import Callable, Collection
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from tests.programs import FORKS

ROOT = str(Path(__file__).resolve().parents[2])


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(
    function: Callable[..., Any],
    processes: int,
    *arguments: Any,
    timeout: float = 240,
    ending: Collection[int] = (),
) -> list:
    """What `function(*arguments)` returns on each rank; it is a module's, and results pickle.

    The processes have the environment that torchrun gives. An exception on a rank is raised here
    with its traceback. Of the ranks in `ending` no result is expected, but that one of them ends.
    """
    if ROOT not in sys.path:
        sys.path.append(ROOT)  # processes import the function's module; `pytest` alone has no root
    port, queue = free_port(), FORKS.Queue()
    workers = [
        FORKS.Process(target=_work, args=(queue, rank, processes, port, function, arguments))
        for rank in range(processes)
    ]
    for worker in workers:
        worker.start()
    try:
        found = dict(queue.get(timeout=timeout) for _ in range(processes - len(ending)))
        if ending:
            wait([workers[rank].sentinel for rank in ending], timeout)
    finally:
        for worker in workers:
            worker.join(0 if ending else 10)
            worker.kill()
    failed = {rank: text for rank, (text, _) in found.items() if text}
    if failed:
        rank, text = min(failed.items())
        raise AssertionError(f"rank {rank} of {processes}:\n{text}")
    return [found[rank][1] for rank in sorted(found)]


def _work(
    queue: Any, rank: int, processes: int, port: int, function: Any, arguments: tuple
) -> None:
    import gc
    import os

    import torch
    import torch.distributed as dist

    gc.freeze()  # what is imported: collections need not look at it
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(processes),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    torch.set_num_threads(1)
    try:
        result = None, function(*arguments)
    except BaseException:
        result = traceback.format_exc(), None
    queue.put((rank, result))
    if dist.is_initialized():
        dist.destroy_process_group()
