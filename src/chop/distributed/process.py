"""Processes of a sharded run: process group, failure detection, and launcher."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from chop.distributed.peers import Heartbeat, Peers, is_peer_failure, peer_failure_text
from chop.distributed.plan import format_mesh
from chop.errors import DistributedError, PlanError, did_you_mean
from chop.runs.interrupt import Terminated

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

BACKENDS = ("gloo", "nccl")
TIMEOUT_S = 600.0
"""Timeout of one collective: processes that load a model reach the first at different times."""
_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_joined: list[Peers] = []


def start(
    mesh: tuple[int, ...], backend: str | None = None, timeout_s: float = TIMEOUT_S
) -> DeviceMesh:
    """Initializes the process group of torchrun, and arranges it in a mesh.

    An existing process group is used if it fits. A mesh of one process does not need torchrun.

    Args:
        mesh: processes along each axis; all of torchrun's.
        backend: "gloo" (CPU) or "nccl" (CUDA, one device per process). None: "nccl" if each process
            of the machine has a device, otherwise "gloo".
        timeout_s: timeout of a collective, in seconds.
    Returns: the mesh, on the device of this process.

    Raises:
        PlanError: if torchrun did not start this process, its number of processes differs from the
            mesh, or the backend is unknown or unsuitable.
        DistributedError: if not all processes joined.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    if backend is not None and backend not in BACKENDS:
        raise PlanError(f"unknown backend '{backend}': {did_you_mean(backend, BACKENDS)}")
    is_there = dist.is_initialized()
    if not is_there and math.prod(mesh) > 1:
        _check_environment(mesh)
    _check_size(mesh, world_size())
    chosen = _check_device(backend or (dist.get_backend() if is_there else None))
    if is_there and dist.get_backend() != chosen:
        raise PlanError(f"expected backend {chosen}, but {dist.get_backend()} is running already.")
    if chosen == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not is_there:
        _join(chosen, timeout_s)
    return init_device_mesh("cuda" if chosen == "nccl" else "cpu", mesh)


def world_size() -> int:
    """Returns the number of processes: of the process group, or from torchrun; otherwise 1."""
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", 1))


@contextmanager
def guarded(what: str = "the run") -> Iterator[None]:
    """Turns the failure of another process into one DistributedError; other errors pass unchanged.

    A collective with a killed process raises at once, but a hung process blocks it silently. If
    `start` joined the processes, they exchange heartbeats. After 20 s of silence this process
    prints one sentence and exits with code 1. Processes that left the block are not reported.

    Raises:
        DistributedError: if another process ended or does not respond.
    """
    heartbeat = Heartbeat(_joined[0], what) if _joined else None
    if heartbeat:
        heartbeat.start()
    done = False
    try:
        yield
        done = True
    except Exception as error:
        if not is_peer_failure(error):
            raise
        raise DistributedError(peer_failure_text(error, what)) from error
    finally:
        if heartbeat:
            heartbeat.leave(done)


def launch(command: Sequence[str], processes: int) -> int:
    """Runs a command on several processes of this machine, like `torchrun --nproc-per-node`.

    Their output is passed on. If one fails, the others are ended. A message reports a process that
    a signal ended, because it could not do so itself. An interrupt of this process ends all.

    Args:
        command: program and arguments; each process runs it with torchrun's environment.
        processes: number of processes.
    Returns: 0, or the exit code of the first process that failed; 128 plus the signal number if a
        signal ended it, or this process received one.
    Raises:
        Terminated: if this process received SIGTERM, after all were ended.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=1.0,  # the others have time for their own sentence before they are ended
    )
    try:
        with _quiet_launcher(processes):
            # torchrun substitutes templates, but dollars are meant literally here.
            arguments = [text.replace("$", "$$") for text in command[1:]]
            elastic_launch(config, command[0])(*arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode >= 0:
            return failure.exitcode
        name = failure.signal_name()
        sys.stderr.write(f"error: process {rank} of {processes} was ended by {name}.\n")
        return 128 - failure.exitcode
    except SignalException as error:
        if error.sigval == signal.SIGTERM:
            raise Terminated from None
        return 128 + int(error.sigval)
    return 0


@contextmanager
def _quiet_launcher(processes: int) -> Iterator[None]:
    """Silences torch's launcher and divides threads between processes within the block."""
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    settings = {"OMP_NUM_THREADS": threads, "TORCH_CPP_LOG_LEVEL": "ERROR"}
    names = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")  # Windows lacks the last two
    signals = [getattr(signal, name) for name in names if hasattr(signal, name)]
    handlers = {number: signal.getsignal(number) for number in signals}
    disabled = logging.root.manager.disable
    before = dict(os.environ)
    # The user's settings take precedence.
    os.environ.update(settings | before)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _check_environment(mesh: tuple[int, ...]) -> None:
    missing = [name for name in _VARIABLES if name not in os.environ]
    if missing:
        raise PlanError(
            f"mesh {format_mesh(mesh)}: expected a process that torchrun started, but "
            f"{missing[0]} is not set: run torchrun --nproc-per-node {math.prod(mesh)} COMMAND."
        )


def _check_size(mesh: tuple[int, ...], processes: int) -> None:
    expected = math.prod(mesh)
    if expected != processes:
        raise PlanError(
            f"mesh {format_mesh(mesh)} has {expected} processes, but {processes} are running: run "
            f"torchrun --nproc-per-node {expected} COMMAND, or pass another mesh."
        )


def _check_device(backend: str | None) -> str:
    """Returns the backend, or the suitable one by default."""
    import torch

    devices = torch.cuda.device_count()
    needed = int(os.environ.get("LOCAL_WORLD_SIZE", int(os.environ.get("LOCAL_RANK", "0")) + 1))
    if backend is None:
        return "nccl" if devices >= needed else "gloo"
    if backend == "nccl" and devices < needed:
        raise PlanError(
            f"backend nccl needs a CUDA device for each of {needed} processes of this machine, "
            f"which has {devices}: use gloo."
        )
    return backend


def _join(backend: str, timeout_s: float) -> None:
    import torch.distributed as dist

    timeout = timedelta(seconds=timeout_s)
    if "RANK" not in os.environ:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        return
    try:
        store, rank, processes = next(iter(dist.rendezvous("env://", timeout=timeout)))
        store.set_timeout(timeout)
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=processes, timeout=timeout
        )
        # Heartbeats begin after the barrier, when the store has an entry of every process.
        _joined[:] = [Peers.join(store, rank, processes)]
        dist.barrier()
    except Exception as error:
        if not is_peer_failure(error):
            raise
        raise DistributedError(peer_failure_text(error, "the start")) from error
