"""The cycle in which the first result leaves, against the plan."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop import MaseGraph, passes
from chop.hardware.check.emitted import write_circuit
from chop.hardware.check.profiles import PROFILES
from chop.hardware.check.project import describe_project
from chop.hardware.check.vectors import get_codes
from chop.hardware.check.verify import Check, run_check
from chop.hardware.design.emit import emit
from chop.hardware.integer_form import integer_form
from chop.integer.golden import golden_values
from chop.nn import integer as i
from chop.nn.integer import Call, Edge, Grid, IntegerOptions
from chop.nn.integer.mask import KeptKeys
from tests.hardware.bench import Case, drawn, needs_tools, planned_cycles
from tests.hardware.design.test_block_linear import block_layer
from tests.hardware.design.test_conv import convolution
from tests.hardware.design.test_linear import EDGE, layer
from tests.hardware.design.test_lookup import table
from tests.hardware.design.test_matmul import head_by_head
from tests.hardware.design.test_norm import norm
from tests.hardware.design.test_pool import image
from tests.hardware.design.test_requantize_blocks import EDGE as FINE
from tests.hardware.design.test_requantize_blocks import requantizer
from tests.hardware.design.test_softmax import HEAD_BY_HEAD, mask_of

pytestmark = needs_tools
WIDE = Edge.of(0.3, -2000, 2000)
THIRDS = Edge.of(1.0, -384, 381, divisor=3)
SCORES = drawn(EDGE, 2, 5, 7, samples=6, positions=HEAD_BY_HEAD)
SPARE = 1
"""Cycles that a plan may be above the circuit: a converter, or the FIFO's, is not always there."""


def pool(kind, kernel):
    return kind.from_quantized(
        None, [EDGE], IntegerOptions(), Call([(4, 6, 6)], {"kernel_size": kernel})
    )


def product(transposed):
    b = head_by_head(2, 5, 6).transpose(1, 2) if transposed else head_by_head(2, 6, 5)
    a = drawn(EDGE, 2, 3, 6, positions=head_by_head(2, 3, 6))
    return i.IntegerMatmul(EDGE, EDGE, 6), a, drawn(EDGE, 2, 6, 5, positions=b)


def conv(*settings, fold=400, **more):
    module = nn.Conv2d(*settings, **more)
    return convolution(module), image(EDGE, module.in_channels, 4, 5), fold


CASES = {
    "relu": (i.IntegerReLU(EDGE), drawn(EDGE, 12), 12),
    "negate": (i.IntegerNegate(Edge.of(0.5, -127, 128)), drawn(EDGE, 12), 12),
    "add": (i.IntegerAdd(EDGE, EDGE), drawn(EDGE, 12), drawn(EDGE, 12), 12),
    "mul": (i.IntegerMul(EDGE, EDGE), drawn(EDGE, 12), drawn(EDGE, 12), 12),
    "requantize": (i.Requantize(Edge.of(1.0, -99, 99), Grid(1.0, -8, 7)), drawn(EDGE, 12), 12),
    "multiply": (i.Requantize(WIDE, Grid(1.0, -128, 127)), drawn(WIDE, 12), 12),
    "divide": (i.Requantize(THIRDS, Grid(1.0, -128, 127)), drawn(THIRDS, 12), 12),
    "sign": (i.Requantize(WIDE, Grid(1.0, -1, 1, "sign")), drawn(WIDE, 12), 12),
    "table": (i.Table(torch.arange(256) - 128, -128, EDGE), drawn(EDGE, 12), 12),
    "embedding": (table(9, 4), drawn(Edge.of(1.0, 0, 8), 5), 20),
    "linear": (layer(4, 6), drawn(EDGE, 3, 6), 36),
    "linear_of_lanes": (layer(4, 8), drawn(EDGE, 3, 8), 1),
    "ternary": (layer(4, 6, weights=(-1, 1)), drawn(EDGE, 3, 6), 9),
    "blocks": (*block_layer(4, 16, size=8), 12),
    "to_blocks": (requantizer(FINE, size=8), drawn(FINE, 3, 16), 48),
    "to_blocks_of_a_beat": (requantizer(FINE, size=8), drawn(FINE, 3, 16), 6),
    "matmul": (*product(False), 90),
    "matmul_transposed": (*product(True), 30),
    "conv": conv(1, 2, 3, padding=1),
    "conv_of_lanes": conv(2, 3, 3, fold=1),
    "conv_of_taps": conv(1, 2, 3, padding=1, fold=60),
    "conv_of_rows_of_taps": conv(1, 2, (4, 3), padding=(2, 1), fold=48),
    "pointwise": conv(6, 5, 1, fold=100),
    "groups": conv(4, 6, 2, groups=2),
    "depthwise": conv(4, 4, (2, 3), padding=1, groups=4),
    "max_pool": (pool(i.IntegerMaxPool2d, 3), image(EDGE, 4, 6, 6), 99),
    "avg_pool": (pool(i.IntegerAvgPool2d, 2), image(EDGE, 4, 6, 6), 99),
    "sum_of_row": (i.IntegerSum(EDGE, (4, 17, 12), (-1,), True), drawn(EDGE, 17, 12), 51),
    "sum_of_column": (i.IntegerMean(EDGE, (4, 13), (-1,), True), drawn(EDGE, 13), 13),
}
ROWS = {
    "softmax": (i.IntegerSoftmax(EDGE, 7, -1, IntegerOptions()), drawn(EDGE, 40, 7), 1),
    "softmax_of_one_row": (i.IntegerSoftmax(EDGE, 40, -1, IntegerOptions()), drawn(EDGE, 1, 40), 1),
    "masked": (i.IntegerSoftmax(EDGE, 7, -1, IntegerOptions()), SCORES, mask_of(7), 1),
    "short_norm": (norm(i.IntegerLayerNorm, EDGE, (6,)), drawn(EDGE, 40, 6), 240),
    "norm_of_one_row": (norm(i.IntegerLayerNorm, EDGE, (48,)), drawn(EDGE, 1, 48), 48),
    "rms_norm": (norm(i.IntegerRMSNorm, EDGE, (16,)), drawn(EDGE, 9, 16), 150),
}


def first_results(operator, *inputs, fold, kept=None, is_soft=False):
    """Cycles from the first beat in to the first result: by the plan, and by the circuit.

    Beats come one in a cycle.
    """
    case = Case(operator, inputs, fold, ("none",), kept, is_soft)
    assert case.runs["none"].passed
    return planned_cycles(case), case.output_cycles[0] - 1


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(3)
def test_the_first_result_leaves_when_planned(name):
    operator, *inputs, fold = CASES[name]
    planned, left = first_results(operator, *inputs, fold=fold)
    assert left <= planned <= left + SPARE


@pytest.mark.parametrize("name", ["linear", "linear_of_lanes", "matmul", "conv", "ternary"])
@pytest.mark.sampled(1)
def test_products_of_lookup_tables_take_what_is_planned(name):
    operator, *inputs, fold = CASES[name]
    planned, left = first_results(operator, *inputs, fold=fold, is_soft=True)
    assert left <= planned <= left + SPARE


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.sampled(1)
def test_a_row_leaves_when_planned(name):
    """A row arrives at any pace; its first result leaves a fixed number of cycles after it."""
    operator, *inputs, fold = ROWS[name]
    kept = KeptKeys(5, 7, True) if name == "masked" else None
    planned, left = first_results(operator, *inputs, fold=fold, kept=kept)
    assert left <= planned <= left + SPARE


class FirstToken(nn.Module):
    """Rows through two layers; the first one is chosen, as a classifier of tokens does."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, input):
        rows = self.b(torch.relu(self.a(input)))
        return self.head((rows + input)[:, 0])


class OddRows(nn.Sequential):
    """Rows of 5 codes, whose port has 3 lanes: two converters go through one lane."""

    def __init__(self):
        super().__init__(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))


class Windows(nn.Sequential):
    def __init__(self):
        conv, pool = nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2)
        super().__init__(conv, nn.ReLU(), pool, nn.Flatten(), nn.Linear(36, 5))


class FastWindows(nn.Sequential):
    """Windows of rows of pixels, which arrive faster than their products are computed."""

    def __init__(self):
        narrow = nn.Conv2d(2, 3, (1, 5), (1, 2), (0, 1))
        super().__init__(narrow, nn.Conv2d(3, 3, 3, padding=(0, 1), dilation=(2, 1)))


@pytest.mark.parametrize(
    ("model", "shape", "fold"),
    [
        (FastWindows, (2, 5, 4), 20),
        (FirstToken, (9, 6), 12),
        (FirstToken, (9, 6), 60),
        (FirstToken, (9, 6), 1000),
        (OddRows, (3, 5), 12),
        (Windows, (1, 6, 6), 12),
        (Windows, (1, 6, 6), 60),
    ],
)
@pytest.mark.sampled(1)
def test_the_last_result_of_a_design_leaves_when_planned(model, shape, fold, tmp_path):
    torch.manual_seed(0)
    batch = {"input": torch.randn(2, *shape)}
    mg = MaseGraph(model(), dummy_in=batch)
    fixed = {"config": {"name": "integer", "width": 8, "frac_width": 5}}
    kinds = {mg.operator(node).name for node in mg.nodes}
    kinds &= {"linear", "relu", "add", "conv2d", "max_pool2d"}
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type"} | dict.fromkeys(kinds, fixed))
    planned, latency = whole_latency(integer_form(mg), batch, fold, tmp_path)
    assert abs(planned - latency) <= 0.05 * latency


def whole_latency(integer, batch, fold, folder):
    """Returns cycles from the first code in to the last one out: planned, and of the circuit."""
    design = emit(integer, fold)
    project = describe_project(design)
    codes = get_codes(project, golden_values(integer, batch))
    write_circuit(design, codes, folder)
    latency = run_check(folder, project, codes, Check("icarus", PROFILES[0], 2, 1)).latency
    return design.connections.schedule.latency(design.netlist), latency


def branches(m, x):
    """Three readers of a value: a gate, a path through padding, and the sum of both."""
    y = m.first(x)
    gate = torch.sigmoid(y.mean((2, 3), keepdim=True))
    return m.last(y * gate + F.pad(y, (1, 1, 1, 1))[:, :, 1:-1, 1:-1])


def u_net(m, x):
    y = m.first(x)
    return m.last(torch.cat((y, F.interpolate(m.down(y), scale_factor=2)), 1)[:, :4])


def residual(m, x):
    y = m.first(x)
    return m.last(y + m.inner(torch.relu(m.inner(y))))


def padded_pool(m, x):
    return m.last(F.max_pool2d(F.pad(m.first(x), (1, 1, 2, 0)), 3, 1))


def strided_pool(m, x):
    return m.last(F.max_pool2d(F.pad(m.first(x).abs(), (0, 1, 1, 0)), 3, 2, 1, ceil_mode=True))


def pooled_back(m, x):
    y = m.first(x)
    return y + F.interpolate(F.avg_pool2d(y, 2), scale_factor=2)


def normalized(m, x):
    return m.last(m.norm(m.first(x)))


DESIGNS = {
    function.__name__: function
    for function in (branches, u_net, residual, padded_pool, strided_pool, pooled_back, normalized)
}


class Images(nn.Module):
    """A function of a module and images (3, 6, 4)."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.first, self.last = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)
        self.inner, self.down = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 2, stride=2)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, input):
        return self.function(self, input)


@pytest.mark.parametrize("fold", [1, 30, 200])
@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.sampled(1)
def test_the_latency_of_branches_and_windows_is_planned(name, fold, tmp_path):
    """Within 2 %: windows wait for rows, not for the interval; readers rejoin at the later one."""
    torch.manual_seed(0)
    batch = {"input": torch.randn(2, 3, 6, 4)}
    config = {"config": {"name": "integer", "width": 8, "frac_width": 5}}
    mg = MaseGraph(Images(DESIGNS[name]).eval(), dummy_in=batch)
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "default": config})
    integer, _ = passes.lower_to_integer_transform_pass(mg, {"batches": [batch]})
    planned, latency = whole_latency(integer, batch, fold, tmp_path)
    assert abs(planned - latency) <= 0.02 * latency + 1
