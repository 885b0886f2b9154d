"""Costs of a plan: bytes of parameters against those of real shards."""

from __future__ import annotations

import torch
from torch import nn

from chop import MaseGraph
from chop.distributed import ShardingPlan
from chop.distributed.builtin_plans import find_plan
from chop.distributed.costs import parameter_bytes, replicated_bytes

X = {"input": torch.ones(3, 5, 8)}


def pair(device: str = "cpu") -> MaseGraph:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 6), nn.LayerNorm(6))
    return MaseGraph(net.to(device).eval(), dummy_in={"input": X["input"].to(device)})


def test_bytes_are_those_of_the_slices_and_whole_ones_are_named():
    mg = pair()
    plan = find_plan("megatron", mg, 2)
    columns, rows, whole = 4 * (6 * 8 + 6), 4 * 6 * 6, 4 * (6 + 6 + 6)
    assert parameter_bytes(mg, plan) == [columns + rows + whole] * 2
    assert replicated_bytes(mg, plan) == {"2.bias": 24, "3.weight": 24, "3.bias": 24}


def test_sizes_that_do_not_divide_and_axes_of_a_mesh():
    mg = pair()
    plan = ShardingPlan((2, 2), {"2.weight": ("S0", "S1"), "0.weight": ("S1", "S1")}).checked(mg)
    rest = sum(x.nbytes for x in mg.model.parameters()) - 4 * (12 * 6 + 12 * 8)
    assert parameter_bytes(mg, plan) == [rest + 4 * (3 * 6 + 12 * 2)] * 4
    uneven = ShardingPlan((5,), {"2.weight": ("S0",)}).checked(mg)
    rest = sum(x.nbytes for x in mg.model.parameters()) - 4 * 12 * 6
    assert [size - rest for size in parameter_bytes(mg, uneven)] == [96, 96, 96, 0, 0]


def test_a_tied_parameter_is_kept_once():
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    net[1].weight = net[0].weight
    mg = MaseGraph(net)
    (kept,) = parameter_bytes(mg, ShardingPlan((1,)))
    assert kept == 4 * (64 + 8 + 8)
