"""A simulated forward of a small model, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.distributed import ShardingPlan, process
from chop.distributed.builtin_plans import PLANS
from chop.distributed.collectives import Collective, Sent
from chop.distributed.planning import Machine
from chop.distributed.planning.simulation import Simulation, simulate
from chop.errors import PlanError

X = {"input": torch.ones(6, 8)}
ROWS, WIDTH, HIDDEN = 6, 8, 12
MACHINE = Machine.of((2,), 1e3, 1e2, 50.0, 0.25, backend="nccl")


def pair(device: str = "cpu") -> MaseGraph:
    net = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))
    return MaseGraph(net.to(device).eval(), dummy_in={"input": X["input"].to(device)})


def simulated(plan: str, device: str = "cpu") -> Simulation:
    mg = pair(device)
    return simulate(mg, PLANS[plan](mg, (2,)), X, MACHINE)


WHOLE = 4 * (2 * WIDTH * HIDDEN + HIDDEN + WIDTH)


def test_a_replicated_forward_sends_nothing_and_needs_two_values_at_once():
    found = simulated("replicate")
    assert (found.sent, found.collectives, found.sent_bytes) == ([], [], 0)
    assert found.parameter_bytes == WHOLE
    # Both ends of the activation, which has its own memory.
    assert found.peak_bytes == WHOLE + 2 * 4 * ROWS * HIDDEN
    nodes = list(dict.fromkeys(step.node for step in found.steps))
    assert nodes == ["input_1", "_0", "_1", "_2", "output"]
    flops = {step.node: step.flops for step in found.steps if step.flops}
    assert flops == {"_0": 2 * 576, "_2": 2 * 576}


def test_time_is_that_of_arithmetic_or_memory_and_then_of_collectives():
    found = {step.node: step.seconds for step in simulated("replicate").steps}
    moved = 4 * (ROWS * WIDTH + WIDTH * HIDDEN + HIDDEN + ROWS * HIDDEN)
    assert found["_0"] == pytest.approx(moved / 1e2)  # memory: 9.12 s, arithmetic: 1.152 s
    assert found["_1"] == pytest.approx(2 * 4 * ROWS * HIDDEN / 1e2)
    assert simulated("replicate").seconds == pytest.approx(sum(found.values()))
    cut = simulated("megatron")
    arithmetic = sum(step.seconds for step in cut.steps) - MACHINE.get_seconds(cut.sent)
    moved = 4 * (ROWS * WIDTH + (WIDTH * HIDDEN + HIDDEN) // 2 + ROWS * HIDDEN // 2)
    moved += 4 * ROWS * HIDDEN  # the activation reads and writes a half
    moved += 4 * (ROWS * HIDDEN // 2 + WIDTH * HIDDEN // 2 + WIDTH + ROWS * WIDTH)
    assert arithmetic == pytest.approx(moved / 1e2)


def test_columns_and_rows_are_summed_once():
    found = simulated("megatron")
    result = 4 * ROWS * WIDTH
    assert found.sent == [Sent("all_reduce", result, 0)]
    assert found.collectives == [Collective("all_reduce", 1, result)]
    assert found.parameter_bytes == 4 * (WIDTH * HIDDEN + HIDDEN // 2 + WIDTH)
    assert found.sent_bytes == result
    ring = 2 * (2 - 1) * (0.25 + result / 2 / 50.0)
    assert MACHINE.get_seconds(found.sent) == pytest.approx(ring)


def test_rows_are_gathered_after_each_layer():
    found = simulated("rows")
    chunks = [4 * ROWS * HIDDEN // 2, 4 * ROWS * WIDTH // 2]
    assert found.sent == [Sent("all_gather_into_tensor", size, 0) for size in chunks]
    assert found.parameter_bytes == WHOLE // 2
    sent = {step.node: len(step.sent) for step in found.steps if step.sent}
    assert sent == {"_1": 1, "output": 1}  # a transfer belongs to the node that reads


def test_samples_are_cut_at_the_inputs_and_gathered_at_the_end():
    found = simulated("data")
    assert found.sent == [Sent("all_gather_into_tensor", 4 * ROWS * WIDTH // 2, 0)]
    assert found.parameter_bytes == WHOLE
    assert found.peak_bytes < simulated("replicate").peak_bytes
    assert {step.flops for step in found.steps} == {0, 576}


@pytest.mark.parametrize(("cut", "axis"), [(("R", "S0"), 1), (("S0", "R"), 0)])
def test_axes_of_a_mesh_are_told_apart(cut: tuple[str, str], axis: int):
    mg = pair()
    machine = Machine.of((2, 2), 1e3, 1e2, (10.0, 50.0), 0.0)
    plan = ShardingPlan((2, 2), {"0.weight": cut, "0.bias": cut}, {"_1": {"_0": ("R", "R")}})
    found = simulate(mg, plan, X, machine)
    assert found.sent == [Sent("all_gather_into_tensor", 4 * ROWS * HIDDEN // 2, axis)]
    chunk = 4 * ROWS * HIDDEN // 2
    assert machine.get_seconds(found.sent) == pytest.approx(chunk / (10.0, 50.0)[axis])


def test_graphs_without_numbers_give_the_same_and_are_not_changed():
    assert simulated("megatron", "meta") == simulated("megatron")
    mg = pair("meta")
    before = {path: id(x) for path, x in mg.model.named_parameters()}
    simulate(mg, PLANS["rows"](mg, (2,)), X, MACHINE)
    assert {path: id(x) for path, x in mg.model.named_parameters()} == before
    assert not torch.distributed.is_initialized()


def test_processes_that_are_joined_already_are_refused():
    mg = pair()
    process.start((1,), "gloo")
    try:
        with pytest.raises(PlanError, match="mesh 2 cannot be simulated after a process group"):
            simulate(mg, PLANS["rows"](mg, (2,)), X, MACHINE)
    finally:
        torch.distributed.destroy_process_group()


def test_a_batch_that_processes_cannot_split_is_named():
    class Flat(nn.Module):
        def forward(self, x):
            return x.flatten(0, 1) + 1

    mg = MaseGraph(Flat(), dummy_in={"x": torch.ones(4, 5, 8)})
    plan = PLANS["data"](mg, (2,))
    simulate(mg, plan, {"x": torch.ones(4, 5, 8)}, MACHINE)
    with pytest.raises(PlanError, match="a batch of 3 rows cannot be split evenly among 2"):
        simulate(mg, plan, {"x": torch.ones(3, 5, 8)}, MACHINE)
