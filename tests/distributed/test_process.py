"""The start of processes, and what the others say where one of them ends, raises or hangs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from chop.distributed import peers, process
from chop.errors import DistributedError, PlanError
from tests.distributed import cluster

TORCHRUN = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
}
LIMIT_S = 30
"""After so long the others have to have said it."""


def one_goes(how: str, rank_that_goes: int) -> tuple[str, float]:
    """Processes add up numbers until one of them goes; the others say what they heard, and when."""
    import torch.distributed as dist

    process.start((int(os.environ["WORLD_SIZE"]),), "gloo")
    began = time.monotonic()
    try:
        with process.guarded("the sum"):
            for step in range(1_000_000):
                if step == 5 and dist.get_rank() == rank_that_goes:
                    go(how)
                dist.all_reduce(torch.ones(4))
    except DistributedError as error:
        return str(error), time.monotonic() - began
    except ValueError:
        os._exit(1)  # as a process does that nobody catches it for
    return "", 0.0


def go(how: str) -> None:
    if how == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exits":
        os._exit(0)
    raise ValueError("of its own")


@pytest.mark.parametrize(
    ("how", "rank"), [("is killed", 0), ("is killed", 2), ("exits", 1), ("raises", 1)]
)
def test_the_end_of_a_process_is_one_clear_error_on_each_of_the_others(how, rank):
    told = cluster.run(one_goes, 3, how, rank, ending={rank})
    assert len(told) == 2
    for text, after in told:
        assert text.startswith("another process ended or hangs during the sum (")
        assert text.endswith(").") and "\n" not in text
        assert after < LIMIT_S


def hangs(silence_s: float, log: str) -> None:
    """The second of two processes stops; the first waits for it, and says so."""
    import torch.distributed as dist

    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    peers.SILENCE_S, peers.PERIOD_S, peers.GRACE_S = silence_s, 0.2, 0.2
    process.start((2,), "gloo")
    with process.guarded("the sum"):
        dist.all_reduce(torch.ones(4))
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.all_reduce(torch.ones(4))


def test_a_process_that_hangs_is_named_within_the_time_of_silence(tmp_path: Path):
    assert peers.SILENCE_S + peers.PERIOD_S + peers.GRACE_S < LIMIT_S
    cluster.run(hangs, 2, 3.0, str(tmp_path / "log"), ending={0, 1})
    assert (tmp_path / "log").read_text() == (
        "error: process 1 of 2 does not respond during the sum: no heartbeat for 3 s; it ended or "
        "hangs.\n"
    )


@pytest.mark.parametrize(
    ("environment", "mesh", "text"),
    [
        (
            {},
            (2, 2),
            "mesh 2x2: expected a process that torchrun started, but RANK is not set: run torchrun "
            "--nproc-per-node 4 COMMAND.",
        ),
        (
            TORCHRUN,
            (4,),
            "mesh 4 has 4 processes, but 2 are running: run torchrun --nproc-per-node 4 COMMAND, "
            "or pass another mesh.",
        ),
    ],
    ids=["alone", "too few"],
)
def test_a_mesh_unlike_the_processes_is_refused_with_the_command(
    monkeypatch, environment, mesh, text
):
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PlanError) as refused:
        process.start(mesh)
    assert str(refused.value) == text
    assert not torch.distributed.is_initialized()


def test_an_unknown_backend_is_refused_with_the_nearest():
    with pytest.raises(PlanError, match="unknown backend 'glo': did you mean 'gloo'"):
        process.start((1,), "glo")


def test_those_that_do_not_come_are_missed(monkeypatch):
    for name, value in {**TORCHRUN, "MASTER_PORT": str(cluster.free_port())}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DistributedError, match="hangs during the start"):
        process.start((2,), "gloo", timeout_s=1)


def others() -> tuple[tuple[int, ...], str]:
    """Errors of a process's own pass a guard as they are, and what has left is not missed."""
    import torch.distributed as dist

    mesh = process.start((2,))
    with pytest.raises(ZeroDivisionError), process.guarded():
        raise ZeroDivisionError
    with pytest.raises(PlanError, match="mesh 1 has 1 processes, but 2 are running"):
        process.start((1,))
    dist.barrier()  # the one that has the store leaves last
    return tuple(mesh.shape), mesh.device_type


def test_processes_that_are_joined_already_are_used():
    assert cluster.run(others, 2) == [((2,), "cpu")] * 2


@pytest.mark.long
def test_a_launched_command_has_torchruns_environment_and_its_exit_code(capfd):
    before = dict(os.environ)
    shell = ["sh", "-c", "echo rank $RANK of $WORLD_SIZE; exit $((RANK * 3))"]
    assert process.launch([*shell[:2], shell[2].partition(";")[0]], 2) == 0
    assert process.launch(shell, 2) == 3
    out, error = capfd.readouterr()
    assert sorted(out.split("\n")[:-1]) == ["rank 0 of 2"] * 2 + ["rank 1 of 2"] * 2
    assert error == ""
    assert os.environ == before


@pytest.mark.long
def test_of_a_process_that_a_signal_ended_the_launcher_tells(capfd):
    assert process.launch(["sh", "-c", "test $RANK = 0 && sleep 60; kill -9 $$"], 2) == 137
    assert capfd.readouterr().err == "error: process 1 of 2 was ended by SIGKILL.\n"
