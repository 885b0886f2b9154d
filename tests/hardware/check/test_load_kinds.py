"""Norms, thresholds, scales, embeddings and constants that are written at run time."""

from functools import cache

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.export.qonnx.reader import read_graph
from chop.formats import QuantSpec, parse_format
from chop.hardware.check.emitted import write_circuit
from chop.hardware.check.profiles import PROFILES
from chop.hardware.check.project import describe_project
from chop.hardware.check.vectors import get_codes
from chop.hardware.check.verify import Check, check_sources, run_check
from chop.hardware.costs.estimate import design_usage
from chop.hardware.design.emit import emit
from chop.integer.golden import golden_values
from chop.nn.integer import Call, Edge, IntegerLinear, IntegerOptions
from chop.nn.quantized import QuantLinear
from tests.export.qonnx_models import tfc

SAMPLES, FOLD = 3, 24
NEEDS_TOOLS = pytest.mark.tools("verilator", "iverilog", "yosys", "c++")


def integer(width, frac_width):
    return {"name": "integer", "width": width, "frac_width": frac_width}


SIX, EIGHT = integer(6, 3), integer(8, 4)
WIDE = {"data_in": integer(10, 6), "weight": SIX, "bias": EIGHT}
SCALED = {"name": "scale_integer", "width": 8}
TERNARY = {"name": "ternary", "threshold": 0.3}


class Constants(nn.Module):
    """Embeddings of three tokens with a shift of each."""

    def __init__(self):
        super().__init__()
        self.table, self.shift = nn.Embedding(7, 4), nn.Parameter(torch.randn(3, 4))
        self.last = nn.Linear(4, 3)

    def forward(self, input):
        return self.last(self.table(input) + self.shift)


def low_bit(width):
    """Ternary weights, so that the norm is not folded, ahead of a reader of some bits."""
    codes = {"data_in": integer(width, width - 2), "weight": TERNARY}
    layers = nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4, bias=False)
    return nn.Sequential(*layers), {"linear": codes}


def images():
    layers = nn.Conv2d(2, 4, 3), nn.PReLU(4), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 3)
    return nn.Sequential(*layers), {"conv2d": WIDE, "group_norm": WIDE, "linear": WIDE}


def scaled(codes=SIX):
    rules = {"linear": {"data_in": codes, "weight": SCALED, "bias": SCALED}}
    return nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4)), rules


def normed(norm, operator):
    return nn.Sequential(norm(8), nn.Linear(8, 4)), {operator: WIDE, "linear": WIDE}


def constants():
    return Constants(), {"embedding": {"weight": SIX}, "add": {"data_in": SIX}, "linear": WIDE}


KINDS = {
    "thresholds": (lambda: low_bit(3), (6,), {"chop_thresholds"}),
    "affine": (lambda: low_bit(8), (6,), {"chop_affine"}),
    "scales": (scaled, (6,), {"chop_requantize"}),
    "ternary_codes": (lambda: scaled(TERNARY), (6,), {"chop_requantize"}),
    "image": (images, (2, 4, 4), {"chop_prelu", "chop_affine", "chop_conv"}),
    "layer_norm": (lambda: normed(nn.LayerNorm, "layer_norm"), (3, 8), {"chop_layer_norm"}),
    "rms_norm": (lambda: normed(nn.RMSNorm, "rms_norm"), (3, 8), {"chop_layer_norm"}),
    "constants": (constants, (3,), {"chop_embedding", "chop_constant"}),
}


def lowered(name, seed, circuit=None, weights="loadable", grow=1.0):
    """An integer graph whose numbers are those of a seed, its inputs, and its operators."""
    make, shape, _ = KINDS[name]
    torch.manual_seed(seed)
    model, rules = make()
    for x in model.parameters():
        x.data = (x.data + torch.randn_like(x) / 4) * grow
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean, module.running_var = torch.randn(8) / 2, torch.rand(8) + 0.5
    ids, reals = torch.randint(0, 7, (SAMPLES, *shape)), torch.randn(SAMPLES, *shape)
    batch = {"input": ids if name == "constants" else reals}
    mg = MaseGraph(model.eval(), dummy_in=batch)
    rules = {kind: {"config": rule} for kind, rule in rules.items()}
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", **rules})
    settings = {"batches": [batch], "weights": weights, "circuit": circuit}
    integers, info = passes.lower_to_integer_transform_pass(quantized, settings)
    return integers, batch, info["operators"]


def read_qonnx(folder, bits, seed, circuit=None):
    """The integer graph of FINN's TFC with the weights and norms of a seed, as QONNX."""
    mg = read_graph(tfc(bits, width=16, shape=(1, 7, 7), seed=seed).save(folder))
    torch.manual_seed(seed)
    batch = {"global_in": torch.rand(SAMPLES, 1, 7, 7) * 2 - 1}
    settings = {"batches": [batch], "weights": "loadable", "circuit": circuit}
    integers, info = passes.lower_to_integer_transform_pass(mg, settings)
    return integers, batch, info["operators"]


def check_one_circuit(first, second):
    """Asserts that two integer graphs share a circuit with other words; returns their designs."""
    own, other = emit(first, FOLD), emit(second, FOLD)
    assert own.files == other.files and own.load.words != other.load.words
    return own, other


def loaded_modules(design):
    """The modules with loadable memories."""
    names = {memory.component for memory in design.load.memories}
    return {part.module for part in design.netlist.instances if part.name in names}


@cache
def both(name):
    """Two graphs that differ in their numbers, with their inputs and operators."""
    first = lowered(name, 0)
    return first, lowered(name, 1, first[0])


def check_outputs(folder, cases):
    """Asserts that the circuits of graphs compute what the graphs do."""
    for graph, batch, design in cases:
        project = describe_project(design)
        codes = get_codes(project, golden_values(graph, batch))
        write_circuit(design, codes, folder)
        result = run_check(folder, project, codes, Check("icarus", PROFILES[1], SAMPLES, 3))
        sizes = [port.beats * port.lanes for port in project.ports if not port.is_input]
        assert result.equal == SAMPLES * sum(sizes)
    check_sources(folder, project)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", KINDS)
def test_other_numbers_need_only_other_words(name):
    (first, *_), (second, _, rows) = both(name)
    own, _ = check_one_circuit(first, second)
    assert KINDS[name][2] <= loaded_modules(own)
    assert max(row["largest"] for row in rows) <= 1


@pytest.mark.long
@NEEDS_TOOLS
@pytest.mark.parametrize("name", KINDS)
def test_both_sets_of_numbers_give_their_own_outputs(name, tmp_path):
    graphs = both(name)
    designs = check_one_circuit(*(graph for graph, *_ in graphs))
    cases = zip(graphs, designs, strict=True)
    check_outputs(tmp_path, [(graph, batch, design) for (graph, batch, _), design in cases])


@pytest.mark.long
@pytest.mark.parametrize("bits", [1, 2])
def test_norms_of_a_qonnx_network_are_words(bits, tmp_path):
    pytest.importorskip("onnx", reason="onnx reads files of QONNX")
    first, *_ = read_qonnx(tmp_path, bits, 0)
    second, _, rows = read_qonnx(tmp_path, bits, 1, first)
    own, _ = check_one_circuit(first, second)
    assert "chop_thresholds" in loaded_modules(own)
    assert max(row["largest"] for row in rows) == 0


@pytest.mark.long
@NEEDS_TOOLS
@pytest.mark.parametrize("bits", [1, 2])
def test_a_qonnx_network_with_two_sets_of_norms(bits, tmp_path):
    pytest.importorskip("onnx", reason="onnx reads files of QONNX")
    first = read_qonnx(tmp_path, bits, 0)
    second = read_qonnx(tmp_path, bits, 1, first[0])
    designs = check_one_circuit(first[0], second[0])
    cases = zip((first, second), designs, strict=True)
    check_outputs(tmp_path, [(graph, batch, design) for (graph, batch, _), design in cases])


@pytest.mark.filterwarnings("ignore:.*lose weights to the format:UserWarning")
def test_numbers_beyond_the_margin_are_refused():
    (first, *_), _ = both("affine")
    with pytest.raises(ConfigError, match=r"'_1': .* largest scale is .* the circuit loads"):
        lowered("affine", 1, first, grow=50.0)
    (scales, *_), _ = both("scales")
    with pytest.raises(ConfigError, match="Requantize: the largest scale is"):
        lowered("scales", 1, scales, grow=50.0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["thresholds", "affine"])
def test_fixed_norms_are_as_narrow_as_their_numbers(name):
    fixed, loadable = (lowered(name, 0, weights=weights)[0] for weights in ("fixed", "loadable"))
    designs = emit(fixed, FOLD), emit(loadable, FOLD)
    assert designs[0].load is None
    usages = [design_usage(each.netlist, each.connections) for each in designs]
    assert usages[0].ff < usages[1].ff and usages[0].lut < usages[1].lut


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["affine", "scales", "image"])
def test_numbers_far_below_those_of_the_circuit_warn(name):
    (first, *_), _ = both(name)
    with pytest.warns(UserWarning, match=r"bits instead of 1[5-7]\)"):
        lowered(name, 1, first, grow=2.0**-5)


def test_a_bias_that_needs_the_bits_of_the_weights_is_refused():
    def layer(scale, like=None):
        torch.manual_seed(0)
        linear = nn.Linear(6, 8)
        linear.weight.data *= scale
        scales = parse_format(SCALED)
        operator = QuantLinear.from_float(linear, QuantSpec(weight=scales, bias=scales))
        options, call = IntegerOptions(weights="loadable"), Call(like=like)
        return IntegerLinear.from_quantized(operator, [Edge.of(0.125, -32, 31)], options, call)

    first = layer(1.0)
    assert layer(2.0**-4, first).shift == first.shift
    with pytest.raises(ConfigError, match="the largest bias is .* times what the circuit loads"):
        layer(2.0**-30, first)
