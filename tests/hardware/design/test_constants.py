"""Layers whose weights are constants: adders instead of multipliers, against the layer."""

import itertools
import random
from pathlib import Path

import pytest
import torch
from torch import nn

from chop.formats import Integer, QuantSpec
from chop.hardware.costs.devices import ECP5
from chop.hardware.costs.estimate import design_usage
from chop.hardware.design.adders import LEVELS, adder_graph, signed_digits
from chop.hardware.design.emit import emit
from chop.hardware.design.plan import DIRECT, Site
from chop.hardware.plans import constant_linear
from chop.hardware.plans.weighted import plan_linear
from chop.nn.integer import Edge, Grid, IntegerReLU, Requantize
from tests.hardware.bench import PROFILES, check, check_graph, drawn, needs_tools
from tests.hardware.design.test_linear import EDGE, layer, sign_layer
from tests.hardware.folds.test_limits import integers

pytestmark = needs_tools
BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


def values(graph, inputs):
    """The outputs of a graph of adders for given inputs, and whether every node is in its range."""
    found = []
    for node in graph.nodes:
        if node.kind == "input":
            value = inputs[node.first]
        elif node.kind == "constant":
            value = node.low
        else:
            a, b = found[node.first], found[node.second] << node.shift
            value = {"sum": a + b, "difference": a - b, "reverse": b - a}[node.kind]
        assert node.low <= value <= node.high
        found.append(value)
    return [found[term.node] << term.shift for term in graph.outputs]


@pytest.mark.parametrize("bits", range(1, 9))
def test_adders_compute_the_product_of_any_matrix(bits):
    draw = random.Random(bits)
    for _ in range(20):
        inputs, outputs, shift = draw.randint(1, 9), draw.randint(1, 6), draw.randint(0, 3)
        ranges = [sorted(draw.choices(range(-9, 9), k=2)) for _ in range(inputs)]
        most = 1 << bits - 1
        rows = [[draw.randint(-most, most) for _ in range(inputs)] for _ in range(outputs)]
        biases = [draw.randint(-50, 50) for _ in range(outputs)]
        graph = adder_graph(ranges, rows, biases, shift)
        assert not any(term.is_negative for term in graph.outputs)
        for _ in range(4):
            given = [draw.choice((low, high, draw.randint(low, high))) for low, high in ranges]
            expected = [
                (sum(x * w for x, w in zip(given, row, strict=True)) << shift) + bias
                for row, bias in zip(rows, biases, strict=True)
            ]
            assert values(graph, given) == expected


def test_signed_digits_are_canonical():
    for number in range(1, 600):
        digits = signed_digits(number)
        assert sum((-1 if d.is_negative else 1) << d.shift for d in digits) == number
        places = [d.shift for d in digits]
        assert all(b - a >= 2 for a, b in itertools.pairwise(places))


def test_powers_of_two_are_wires_and_multiples_are_shared():
    graph = adder_graph([(0, 15)], [[8], [16], [1]], [0, 0, 0])
    assert list(graph.adders) == [] and graph.stages == 1
    # 3 x serves 12 x and -3 x, which subtracts it from the bias.
    graph = adder_graph([(0, 15)], [[3], [12], [-3]], [0, 0, 1])
    assert len(list(graph.adders)) == 2
    # Bits that do not overlap are joined without an adder.
    assert list(adder_graph([(0, 15)] * 2, [[1, 16]], [0]).adders) == [0]


def test_levels_are_as_few_as_a_full_tree_has():
    draw = random.Random(0)
    rows = [[draw.randint(-32, 31) for _ in range(16)] for _ in range(8)]
    graph = adder_graph([(-32, 31)] * 16, rows, [5] * 8)
    # 16 weights of at most 3 digits, and a bias.
    assert graph.stages == -(-(16 * 3 + 1 - 1).bit_length() // LEVELS) == 3


CASES = [
    (6, 4, (3,), EDGE, (-128, 127), 0),
    (3, 5, (), Edge.of(1.0, 0, 31), (-8, 7), 2),
    (7, 2, (2,), Edge.of(1.0, -3, -2), (-1, 1), 0),
    (2, 2, (), EDGE, (0, 0), 0),
    # Inputs with one value, as behind a layer of zeros.
    (4, 3, (2,), Edge.of(1.0, 0, 0), (-8, 7), 1),
    (3, 2, (2,), Edge.of(1.0, 5, 5), (-8, 7), 0),
]
WIDTHS = [
    (5, 3, (2,), Edge.of(1.0, -(1 << bits - 1), (1 << bits - 1) - 1), (-(1 << bits - 1), most), 1)
    for bits, most in zip(range(1, 9), [(1 << k) - 1 for k in range(8)], strict=True)
]


def check_constants(inputs, outputs, rows, edge, weights, shift, profiles=PROFILES):
    operator = layer(outputs, inputs, edge, weights, shift=shift)
    count = torch.Size(rows).numel()
    return check(operator, drawn(edge, *rows, inputs), fold=count, profiles=profiles)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(1)
def test_a_layer_of_constants(case):
    plan = check_constants(*case)
    assert plan.module.startswith(constant_linear.MODULE) and not plan.resources.products


def test_a_sum_may_have_no_bits_of_its_second_operand():
    """The sums of codes from -8 to -5 and a bias of 16 are the lowest four bits of the codes."""
    edge = Edge.of(1.0, -8, -5)
    check(layer(1, 1, edge, (1, 1), (16, 16)), drawn(edge, 3, 1), fold=3, profiles=PROFILES)


@pytest.mark.long
@pytest.mark.parametrize("case", WIDTHS, ids=range(1, 9))
def test_widths_of_one_to_eight_bits(case):
    plan = check_constants(*case)
    assert plan.module.startswith(constant_linear.MODULE) and not plan.resources.products


@pytest.mark.long
def test_signs_are_bits():
    operator, entered = sign_layer(4, 7, 1)
    plan = check(operator, entered, fold=3)
    assert plan.module.startswith(constant_linear.MODULE)
    # Four sums of seven bits, and a bias.
    assert sum(plan.resources.sums) < 4 * 25


FAULTS = {
    "ignores_back_pressure": ("!data_out_0_valid_o || data_out_0_ready_i;", "1'b1;"),
    "registers_move_while_waiting": ("if (moves) begin", "if (1'b1) begin"),
    "not_reset": ("if (!rst_ni) valid_q <= '0;\n    else if", "if"),
    "added_instead_of_subtracted": (" - ", " + "),
    "beat_too_early": ("data_out_0_valid_o = valid_q[2]", "data_out_0_valid_o = valid_q[1]"),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.sampled(1)
def test_a_fault_in_the_adders_is_found(name, monkeypatch):
    old, new = FAULTS[name]
    render = constant_linear.render

    def planted(*given, **more):
        text = render(*given, **more)
        assert old in text
        return text.replace(old, new, 1)

    monkeypatch.setattr(constant_linear, "render", planted)
    monkeypatch.setattr("tests.hardware.bench.CompiledBench.complaints", lambda bench: "")
    constant_linear._source.cache_clear()
    try:
        with pytest.raises(AssertionError, match="breaks the law"):
            check_constants(*CASES[0])
    finally:
        constant_linear._source.cache_clear()


def planned(weights, inputs=4, outputs=3, fold=1, lanes=1):
    operator = layer(outputs, inputs, EDGE, weights)
    return plan_linear(Site(operator, [drawn(EDGE, inputs, lanes=lanes).stream], fold))


def test_weights_are_constants_where_all_are_used_in_every_cycle():
    assert planned((-8, 7)).source
    assert planned((-8, 7), fold=2).resources.products == 6
    assert planned((-1, 1), fold=2).module == "chop_ternary_linear"


def test_a_matrix_beyond_every_device_is_not_unrolled(monkeypatch):
    monkeypatch.setattr(constant_linear, "MOST_WEIGHTS", 11)
    assert planned((-8, 7)).resources.products == 12


def test_layers_with_equal_weights_share_a_module():
    first, second = planned((-8, 7)), planned((-8, 7))
    assert first.module == second.module and first.source == second.source
    assert planned((-8, 6)).module != first.module


@pytest.mark.long
@pytest.mark.parametrize("operator", [IntegerReLU(EDGE), Requantize(EDGE, Grid(2.0, -8, 7))])
def test_a_sample_in_a_beat_is_not_buffered_ahead_of_an_activation(operator):
    plan = check(operator, drawn(EDGE, 5), fold=1)
    assert plan.buffers == (DIRECT,) and plan.latency <= 1
    assert check(operator, drawn(EDGE, 5), fold=5, profiles=("bursts",)).buffers == (0,)


def small():
    return integers(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)), 6)


def test_a_design_of_constants_takes_the_planned_cycles_and_no_multiplier(tmp_path):
    mg = small()
    built = check_graph(mg, {"input": torch.randn(6, 6)}, 1, tmp_path)
    assert built.design.interval == built.interval == 1
    usage = design_usage(built.design.netlist, built.design.connections, ECP5)
    assert usage.dsp == 0
    assert emit(mg, 2).netlist.instances[0].plan.resources.products


@pytest.fixture
def benchmarks(monkeypatch):
    """The folder of the benchmarks is on the path."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


COUNTED = {
    "4 bits": (12, 6, QuantSpec(Integer(4, 2), Integer(4, 5), Integer(8, 5)), 780, 590),
    "8 bits": (12, 8, QuantSpec.uniform(Integer(8, 5)), 1573, 1182),
}
"""Inputs, outputs, formats, lookup tables and flip-flops that Yosys 0.23 counts in `synth_ecp5`."""


@pytest.mark.parametrize("name", COUNTED)
def test_estimates_are_near_the_counts_of_a_synthesis(name, benchmarks):
    from hardware_estimates import layer_graph

    inputs, outputs, formats, luts, registers = COUNTED[name]
    design = emit(layer_graph(lambda: nn.Linear(inputs, outputs), (inputs,), formats), 1)
    usage = design_usage(design.netlist, design.connections, ECP5)
    assert usage.lut == pytest.approx(luts, rel=0.2) and usage.dsp == 0
    assert usage.ff == pytest.approx(registers, rel=0.2)


@pytest.mark.long
def test_the_jet_tagger_takes_at_most_25_cycles(benchmarks):
    import jet_tagger

    mg = jet_tagger.graph(6)
    design = emit(mg, 1)
    latency, equal = jet_tagger.simulated(mg, design, 10)
    planned = design.connections.schedule.latency(design.netlist)
    assert design.interval == 1 and equal == "200 of 200"
    assert latency <= 25 and abs(planned - latency) <= 0.05 * latency
