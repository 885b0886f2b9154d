"""Circuit of linear layers in MXINT: products of elements, a shift for each block, exact sums."""

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.formats import MXInt
from chop.hardware.design.stream import Stream
from chop.nn.integer import BlockGrid, Edge, IntegerLinear
from chop.nn.integer.linear import SharedBlocks
from chop.nn.integer.weighted import Weighted
from tests.hardware.bench import PROFILES, Driven, check, check_graph, needs_tools

pytestmark = needs_tools


def codes_in_blocks(grid, *shape, seed=0):
    """Codes of blocks of all sizes that a window has, with the largest on both sides, and zeros."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator)
    blocks = -(-shape[-1] // grid.sizes[-1])
    powers = torch.randint(grid.lowest - 3, grid.highest + 2, (*shape[:-1], blocks))
    x = x * torch.exp2(powers.repeat_interleave(grid.sizes[-1], -1)[..., : shape[-1]].float())
    x.view(-1)[0] = 2.0 ** (grid.highest + 2)
    x.view(-1)[-1] = -x.view(-1)[0]
    x[1:2, ..., : grid.sizes[-1]] = 0
    return grid.codes(x)


def block_layer(outputs, inputs, size=32, widths=(8, 8), shift=0, rows=(3,), samples=5):
    """A layer of blocks, and what it reads."""
    grids = [BlockGrid.of(MXInt(w, block_size=size), -4, 3) for w in widths]
    data_in, weight = grids[0], codes_in_blocks(grids[1], outputs, inputs, seed=1)
    bias = torch.arange(outputs) * 1001 - 999
    bound = int(weight.abs().sum(1).max()) * data_in.edge.high
    end = (bound << shift) + int(bias.abs().max())
    operator = IntegerLinear(Weighted(weight, bias, shift, bound, Edge.of(1.0, -end, end)))
    operator.blocks = (size, *widths)
    codes = codes_in_blocks(data_in, samples, *rows, inputs)
    return operator, Driven(Stream.in_order((*rows, inputs), data_in.edge, 1), codes)


@pytest.mark.parametrize(
    ("outputs", "inputs", "size", "widths", "shift", "rows", "fold", "lanes", "profiles"),
    [
        (6, 64, 32, (8, 8), 0, (3,), 12, (32, 3), PROFILES),
        (4, 48, 32, (8, 8), 2, (2,), 24, None, ("none", "bursts")),
        (3, 10, 4, (4, 4), 0, (), 15, None, ("uniform", "bursts")),
        (2, 9, 3, (8, 2), 0, (4,), 12, None, ("none", "uniform")),
        (5, 7, 7, (12, 8), 1, (2,), 2, (7, 5), ("none", "uniform")),
        (1, 1, 32, (8, 8), 0, (3,), 3, (1, 1), ("bursts",)),
    ],
)
@pytest.mark.sampled(1)
def test_linear_of_blocks(outputs, inputs, size, widths, shift, rows, fold, lanes, profiles):
    operator, entered = block_layer(outputs, inputs, size, widths, shift, rows)
    plan = check(operator, entered, fold=fold, profiles=profiles)
    found = plan.parameters["IN_LANES"], plan.parameters["OUT_LANES"]
    assert plan.module == "chop_block_linear" and lanes in (None, found)
    assert plan.resources.multipliers == {widths: found[0] * found[1]}
    assert size % found[0] == 0 and plan.cycles <= fold


def test_features_of_several_blocks_do_not_travel_in_one_beat():
    operator, (stream, codes) = block_layer(4, 12, size=6, rows=(2,))
    mixed = torch.arange(12).view(2, 6).T.reshape(-1)
    positions = torch.stack((mixed.argsort(), 12 + mixed.argsort()))
    plan = check(operator, Driven(Stream(positions, stream.edge, 1), codes), profiles=("none",))
    assert plan.parameters["IN_LANES"] == 1


def test_weights_that_were_rounded_once_more_have_wide_products():
    operator, entered = block_layer(4, 12, size=6, rows=(2,))
    operator.weight[0, 0], operator.weight[0, 1] = 3001, -1
    assert check(operator, entered, profiles=("none",)).module == ""


@pytest.mark.long
@pytest.mark.parametrize("inputs", [40])
def test_a_layer_in_mxint_from_the_model_to_the_circuit(inputs, tmp_path):
    number_format = {"config": {"name": "mxint", "width": 8}}
    batch = {"input": torch.randn(6, inputs) * torch.exp2(torch.arange(6.0) - 3)[:, None]}
    mg = MaseGraph(nn.Sequential(nn.Linear(inputs, 6)), dummy_in=batch)
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": number_format})
    integer, _ = passes.lower_to_integer_transform_pass(quantized, {"batches": [batch]})
    (layer,) = (m for m in integer.modules.values() if isinstance(m, IntegerLinear))
    assert SharedBlocks(*layer.blocks) == SharedBlocks(32, 8, 8)
    outputs = check_graph(integer, batch, 15, tmp_path).outputs
    assert torch.equal(outputs, quantized.model(**batch))
