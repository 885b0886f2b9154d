"""Circuit that rounds to blocks with shared exponents, and whole models in MXINT."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.formats import MXInt
from chop.hardware.costs.devices import ECP5
from chop.hardware.costs.estimate import module_usage
from chop.hardware.costs.logic import estimate_logic
from chop.hardware.design.components import COMPONENTS
from chop.hardware.design.emit import emit
from chop.hardware.design.plan import Site
from chop.hardware.design.stream import Stream
from chop.nn.integer import BlockGrid, Edge, RequantizeBlocks
from tests.hardware.bench import PROFILES, Driven, check, check_graph, drawn, needs_tools

pytestmark = needs_tools
EDGE = Edge.of(2.0**-12, -(2**20), 2**20)
NARROW = Edge.of(0.5, -9, 6)
WIDE = Edge.of(2.0**-30, -(2**50), 2**50)


def drawn_blocks(edge, *shape, samples=5, seed=0, positions=None):
    """Codes of all sizes, some negative and powers of two; a row of zeros, and the ends."""
    driven = drawn(edge, *shape, samples=samples, seed=seed, positions=positions)
    generator = torch.Generator().manual_seed(seed)
    rows = driven.codes.view(-1, shape[-1])
    rows >>= torch.randint(0, edge.bits, (len(rows), 1), generator=generator)
    largest = rows[::3].abs().amax(1, keepdim=True).clamp(min=1)
    rows[::3, :1] = -largest.log2().ceil().exp2().long()
    rows[1] = 0
    rows[-1, 0], rows[-1, -1] = edge.low, edge.high
    return Driven(driven.stream, driven.codes.clamp(edge.low, edge.high))


def requantizer(edge, width=8, size=32, window=(-4, 3), **more):
    return RequantizeBlocks(edge, BlockGrid.of(MXInt(width, block_size=size, **more), *window))


@pytest.mark.parametrize(
    ("width", "size", "window", "edge", "shape", "fold", "lanes", "profiles"),
    [
        (8, 4, (-4, 3), EDGE, (3, 10), 15, 2, PROFILES),
        (8, 32, (-4, 3), EDGE, (2, 64), 128, 1, ("none", "bursts")),
        (8, 32, (-4, 3), EDGE, (2, 64), 4, 32, ("none", "uniform")),
        (4, 3, (-2, -1), EDGE, (7,), 7, 1, ("none", "slow_reader")),
        (6, 1, (-9, 6), EDGE, (12,), 6, 1, ("none", "uniform")),
        (16, 8, (-20, -14), EDGE, (2, 8), 4, 4, ("none",)),
        (3, 5, (3, 9), NARROW, (2, 5), 2, 5, ("none",)),
        (9, 4, (-40, -31), NARROW, (3, 4), 12, 1, ("none",)),
        (8, 6, (4, 12), WIDE, (3, 12), 18, 2, ("none", "bursts")),
        (32, 6, (10, 20), WIDE, (2, 12), 8, 3, ("none",)),
    ],
)
@pytest.mark.sampled(1)
def test_rounds_to_blocks(width, size, window, edge, shape, fold, lanes, profiles):
    operator = requantizer(edge, width, size, window)
    plan = check(operator, drawn_blocks(edge, *shape), fold=fold, profiles=profiles)
    assert plan.lanes == (lanes,) and plan.cycles == plan.out.size // lanes
    assert plan.parameters["WINDOW"] == window[1] - window[0] and not plan.module


def test_a_window_of_one_exponent_is_a_plain_requantizer():
    operator = requantizer(EDGE, window=(3, 3))
    positions = torch.arange(10).flip(0).view(2, 5)
    plan = check(operator, drawn_blocks(EDGE, 2, 5, positions=positions), profiles=("none",))
    assert plan.module == "chop_round" and plan.holds == (0.0,)


@pytest.mark.long
def test_features_travel_in_any_order_within_blocks():
    """Blocks of four rows of features that travel from the last one to the first one."""
    positions = torch.arange(24).view(3, 8).flip(1)
    plan = check(requantizer(EDGE, size=4), drawn_blocks(EDGE, 3, 8, positions=positions))
    assert plan.parameters["BLOCK"] == 4
    columns = torch.arange(24).view(8, 3).T.contiguous()
    across = requantizer(EDGE, size=8, window=(-4, 2))
    along = drawn_blocks(EDGE, 3, 8, positions=columns.T.reshape(8, 3).T.contiguous())
    with pytest.raises(ConfigError, match="blocks of 8 codes are interleaved"):
        COMPONENTS["RequantizeBlocks"].plan(Site(across, [along.stream], 24))


@pytest.mark.parametrize(
    ("operator", "positions", "reason"),
    [
        (requantizer(EDGE, size=2, block_dim=0), None, "span several samples"),
        (requantizer(EDGE, size=(3, 4)), None, "span several samples"),
        (requantizer(EDGE, size=4), torch.arange(10).flip(0)[None], r"blocks of \[2, 4\] codes"),
    ],
)
def test_what_no_stream_of_blocks_has_is_refused(operator, positions, reason):
    stream = Stream.in_order((10,), EDGE) if positions is None else Stream(positions, EDGE, 1)
    with pytest.raises(ConfigError, match=reason):
        COMPONENTS["RequantizeBlocks"].plan(Site(operator, [stream], 24))


@pytest.mark.parametrize(
    ("lanes", "window", "base", "shift", "bits", "counted"),
    [(1, 5, 9, 8, 21, (581, 261)), (4, 8, 9, 11, 24, (2073, 789)), (16, 5, 9, 8, 21, (4609, 2377))],
)
def test_what_it_takes_is_what_yosys_counts(lanes, window, base, shift, bits, counted):
    """Counts are those of synth_ecp5 of Yosys 0.23."""
    sizes = {"LANES": lanes, "FEATURES": 64, "BLOCK": 32, "IN_W": bits, "OUT_W": 8 + window}
    parameters = {**sizes, "BASE": base, "WINDOW": window, "SHIFT": shift, "LIMIT": 127}
    usage = module_usage("chop_requantize_blocks", parameters, ECP5)
    assert usage.lut == pytest.approx(counted[0], rel=0.2)
    assert usage.ff == pytest.approx(counted[1], rel=0.02)


def test_no_more_than_all_bits_of_a_magnitude_are_looked_at():
    """Yosys 0.23 keeps 466 registers of the sources."""
    sizes = {"LANES": 4, "FEATURES": 64, "BLOCK": 32, "IN_W": 10, "OUT_W": 16, "LIMIT": 127}
    parameters = {**sizes, "BASE": -8, "WINDOW": 8, "SHIFT": 0}
    found = estimate_logic("chop_requantize_blocks", parameters)
    assert found == estimate_logic("chop_requantize_blocks", {**parameters, "BASE": -1})
    assert found.ff == pytest.approx(466, rel=0.03)


def mlp(*sizes):
    """Layers with a ReLU between, whose features are smaller from block to block."""
    torch.manual_seed(0)
    layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
    for layer in layers:
        small = torch.exp2(-1.0 * (torch.arange(layer.out_features) // 8 % 4))
        layer.weight.data *= small[:, None]
        layer.bias.data *= small
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))[:-1]


def check_model(model, inputs, number_format, fold, simulator, folder, samples=6):
    """The circuit equals the graph of integers, which equals the quantized model."""
    x = torch.randn(samples, inputs) * torch.exp2(torch.arange(samples) % 4 - 3.0)[:, None]
    batch = {"input": x}
    mg = MaseGraph(model, dummy_in=batch)
    config = {"config": {"name": "mxint", **number_format}}
    rules = {"by": "type", "linear": config, "relu": config}
    quantized, _ = passes.quantize_transform_pass(mg, rules)
    integer, _ = passes.lower_to_integer_transform_pass(quantized, {"batches": [batch]})
    design, outputs, *_ = check_graph(integer, batch, fold, folder, simulator)
    assert torch.equal(outputs, quantized.model(**batch))
    return design


def modules_of(design):
    return [instance.module for instance in design.netlist.instances]


@pytest.mark.long
def test_a_perceptron_in_mxint_is_a_circuit(tmp_path):
    design = check_model(mlp(20, 24, 3), 20, {"block_size": 8}, 24, "icarus", tmp_path)
    rounds, relu, layer = "chop_requantize_blocks", "chop_relu", "chop_block_linear"
    assert modules_of(design) == [layer, rounds, relu, rounds, layer]
    windows = [p.plan.parameters.get("WINDOW", 0) for p in design.netlist.instances]
    assert max(windows) >= 3


@pytest.mark.long
@pytest.mark.parametrize("width", [4, 8])
def test_three_layers_of_whole_blocks_are_a_circuit(width, tmp_path):
    model, options = mlp(64, 96, 40, 10), {"width": width}
    design = check_model(model, 64, options, 96, "verilator", tmp_path, samples=40)
    assert modules_of(design).count("chop_requantize_blocks") == 4
    assert modules_of(design).count("chop_block_linear") == 3


def images(block_dim):
    """Two convolutions and a linear layer on integers in MXINT, its quantized model, and images."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 6, 3, stride=2)
    model = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(24, 5))
    batch = {"input": torch.randn(4, 3, 6, 5) * torch.exp2(-1.0 * torch.arange(5))}
    config = {"config": {"name": "mxint", "width": 8, "block_size": 4, "block_dim": block_dim}}
    mg = MaseGraph(model, dummy_in=batch)
    rules = {"by": "type", "linear": config, "relu": config, "conv2d": config}
    quantized, _ = passes.quantize_transform_pass(mg, rules)
    integer, _ = passes.lower_to_integer_transform_pass(quantized, {"batches": [batch]})
    return integer, quantized, batch


def test_blocks_along_image_rows_pass_in_another_order():
    modules = modules_of(emit(images(-1)[0], fold=200))
    assert modules.count("chop_conv") == 2 and modules.count("chop_requantize_blocks") >= 3
    assert modules.count("chop_reorder") > 1


@pytest.mark.long
@pytest.mark.parametrize(("block_dim", "reorders"), [(1, 1), (-1, 3)])
def test_convolutions_in_mxint_equal_the_quantized_model(block_dim, reorders, tmp_path):
    integer, quantized, batch = images(block_dim)
    found = check_graph(integer, batch, 200, tmp_path, "verilator")
    assert torch.equal(found.outputs, quantized.model(**batch))
    # Blocks along channels are whole ahead of convolutions, and not ahead of the linear layer.
    assert modules_of(found.design).count("chop_reorder") == reorders
    assert abs(found.interval - found.design.interval) <= 0.03 * found.design.interval


class CausalAttention(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


def test_blocks_of_masked_scores_are_refused():
    x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
    config = {"config": {"name": "mxint", "width": 8, "block_size": 4}}
    mg = MaseGraph(CausalAttention(), dummy_in={"x": x})
    rules = {"by": "type", "scaled_dot_product_attention": config}
    quantized, _ = passes.quantize_transform_pass(mg, rules)
    integer, _ = passes.lower_to_integer_transform_pass(quantized, {"batches": [{"x": x}]})
    with pytest.raises(ConfigError, match="shared block exponents have no circuit; give"):
        emit(integer, fold=64)
