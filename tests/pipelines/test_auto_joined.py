"""Searching and sharding where processes are joined: any mesh, any number of models."""

import os
import signal

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.distributed.planning.own_process import in_own_process
from chop.errors import DistributedError, PlanError
from chop.pipelines import AutoPipelineForDistributedInference
from tests.distributed import cluster

SEARCH = "autosharding_analysis_pass"
X = torch.linspace(-2, 2, 6 * 8).view(6, 8)


def graph_of(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.Softmax(-1))
    return MaseGraph(model.eval(), dummy_in={"input": X})


def shard_several(meshes, joined):
    """By model: the plan that this process got, and whether outputs are those of one process."""
    if joined:
        torch.distributed.init_process_group("gloo")
    found = []
    for seed, mesh in enumerate(meshes):
        mg = graph_of(seed)
        args = {SEARCH: {"mesh": mesh}}
        sharded, info = AutoPipelineForDistributedInference()(mg, pass_args=args)
        with torch.no_grad():
            torch.testing.assert_close(sharded.model(X), mg.model(X))
        assert [step.name for step in sharded.provenance][-2:] == list(info)
        found.append(info[SEARCH]["plan"].to_json())
    with pytest.raises(PlanError, match="no plan on a mesh of .* fits into 9 bytes"):
        AutoPipelineForDistributedInference()(
            graph_of(0), pass_args={SEARCH: {"mesh": meshes[0], "memory_bytes": 9}}
        )
    return found


@pytest.mark.long
@pytest.mark.parametrize("joined", [False, True])
def test_several_models_on_several_meshes(joined):
    meshes = [2, (2, 1)] if joined else [(1, 2), (1, 2)]
    first, second = cluster.run(shard_several, 2, meshes, joined)
    assert first == second
    assert [plan["mesh"] for plan in first] == [[m] if m == 2 else list(m) for m in meshes]


def plan_alone():
    """A plan for more processes than are joined, of this process only."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    plan = None
    if rank == 0:
        _, info = passes.autosharding_analysis_pass(graph_of(0), {"mesh": "2x2"})
        plan = info["plan"].mesh
    with pytest.raises(PlanError, match="mesh 2x2 has 4 processes, but 2 are running"):
        passes.autosharding_analysis_pass(graph_of(0), {"mesh": "2x2", "broadcast": True})
    torch.distributed.barrier()  # the groups of this process are as they were
    return plan


def test_one_of_joined_processes_plans_for_a_larger_mesh():
    assert cluster.run(plan_alone, 2) == [(2, 2), None]


def test_a_search_in_a_process_of_its_own_tells_phases_and_errors():
    phases = []

    def find(report):
        report("layouts")
        report("solving")
        return os.getpid()

    assert in_own_process(find, phases.append) != os.getpid()
    assert phases == ["layouts", "solving"]

    def fail(report):
        raise PlanError("no plan fits")

    with pytest.raises(PlanError, match="no plan fits"):
        in_own_process(fail)

    def fail_with_a_lambda(report):
        error = ValueError("no such layout\nhere")
        error.rule = lambda: None
        raise error

    with pytest.raises(DistributedError, match="failed: ValueError: no such layout\n") as raised:
        in_own_process(fail_with_a_lambda)
    assert "in fail_with_a_lambda" in raised.value.__notes__[0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_search_that_is_killed_is_one_sentence(number):
    def end(report):
        os.kill(os.getpid(), number)
        signal.pause()

    with pytest.raises(DistributedError, match=f"ended with code -{number}"):
        in_own_process(end)
