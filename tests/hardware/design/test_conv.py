"""Circuits of convolutions, against the operators."""

import random

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.hardware.integer_form import integer_form
from chop.nn.integer import Edge, IntegerConv1d, IntegerConv2d
from chop.nn.integer.weighted import Weighted
from tests.hardware.bench import PROFILES, check, check_graph, drawn, needs_tools
from tests.hardware.design.test_pool import image

pytestmark = needs_tools
BYTES = Edge.of(0.25, -128, 127)
SOME = ("uniform", "bursts")


def convolution(module, edge=BYTES, shift=0, seed=0):
    """The integer form of a layer, with random weights of four bits."""
    shape = module.weight.shape
    weight = drawn(Edge.of(1.0, -8, 7), *shape, samples=1, seed=seed).codes[0]
    bias = drawn(Edge.of(1.0, -999, 999), shape[0], samples=1, seed=seed + 1).codes[0]
    bound = max(-edge.low, edge.high) * int(weight.abs().flatten(1).sum(1).max())
    most = (bound << shift) + 999
    kind = {3: IntegerConv1d, 4: IntegerConv2d}[len(shape)]
    axis = kind.axis
    out = Edge(torch.tensor(1.0, dtype=torch.float64), axis, -most, most)
    operator = kind(Weighted(weight, bias, shift, bound, out))
    operator.take_settings(module)
    return operator


CASES = {
    "plain": (nn.Conv2d(2, 3, 3), (6, 5), 1, PROFILES),
    "one_lane": (nn.Conv2d(1, 4, 3, padding=1), (5, 4), 20 * 36, PROFILES),
    "strided": (nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0)), (7, 5), 200, ("none", *SOME)),
    "dilated": (nn.Conv2d(3, 2, 3, padding="same", dilation=(1, 2)), (4, 6), 1, SOME),
    "pointwise": (nn.Conv2d(6, 5, 1), (3, 3), 60, ("none", *SOME)),
    "patches": (nn.Conv2d(1, 12, 4, 4), (8, 8), 100, ("none", *SOME)),
    "short": (nn.Conv2d(2, 3, (5, 1), padding=(2, 3)), (3, 1), 1, ("none", *SOME)),
    "one_dimension": (nn.Conv1d(3, 5, 3, 2, 1), (11,), 90, PROFILES),
    "one_dimension_same": (nn.Conv1d(2, 3, 5, padding="same"), (7,), 1, ("none", *SOME)),
    "far_padding": (nn.Conv1d(2, 1, 2, 3, 4), (5,), 99, ("none", *SOME)),
}
GROUPED = {
    "depthwise": (nn.Conv2d(4, 4, 3, padding=1, groups=4), (5, 4), 360, 2, PROFILES),
    "depthwise_fast": (nn.Conv2d(6, 6, (2, 3), 2, groups=6), (5, 6), 1, 18, ("none", *SOME)),
    "depthwise_1d": (nn.Conv1d(3, 3, 3, 2, 1, groups=3), (9,), 60, 1, ("none", *SOME)),
    "one_tap": (nn.Conv2d(2, 2, 1, groups=2), (3, 3), 9, 2, ("none", *SOME)),
    "two_groups": (nn.Conv2d(4, 6, 3, padding=1, groups=2), (4, 4), 600, None, PROFILES),
    "multiplied": (nn.Conv2d(3, 6, 2, groups=3), (4, 3), 1, None, ("none", *SOME)),
    "groups_1d": (nn.Conv1d(6, 3, 3, dilation=2, groups=3), (8,), 99, None, ("none", *SOME)),
    "groups_to_one": (nn.Conv2d(4, 2, 3, 2, groups=2), (5, 5), 1, None, ("uniform", "bursts")),
}


TAPS = {
    "a_row": (nn.Conv2d(1, 4, 3, padding=1), (6, 5), 90, 3),
    "all_of_a_fold": (nn.Conv2d(2, 3, 3, 1, (1, 2), (1, 2)), (4, 4), 44, 9),
    "two_rows": (nn.Conv2d(1, 2, (4, 3), 1, (2, 1), (2, 1)), (7, 4), 48, 6),
    "half_a_row": (nn.Conv2d(1, 2, (2, 4), padding=(1, 2)), (3, 5), 96, 2),
    "one_row": (nn.Conv2d(3, 2, (1, 5), padding=(0, 2)), (3, 6), 24, 5),
    "half_a_column": (nn.Conv2d(1, 3, (6, 1), padding=(3, 0)), (5, 4), 48, 3),
    "one_dimension": (nn.Conv1d(1, 4, 9, padding=4), (16,), 48, 3),
    "all_of_one_dimension": (nn.Conv1d(2, 3, 4, 2, 1, 2), (15,), 15, 2),
    "one_window": (nn.Conv2d(1, 2, (4, 3)), (4, 3), 14, 3),
    "beyond_the_image": (nn.Conv2d(1, 2, 5, padding=2), (2, 3), 9, 25),
    "strided": (nn.Conv2d(1, 2, 3, (2, 3), 1), (7, 8), 56, 3),
    "groups": (nn.Conv2d(4, 6, 3, padding=1, groups=2), (4, 4), 96, 3),
}
"""With the taps that leave together."""


@pytest.mark.parametrize("name", TAPS)
@pytest.mark.sampled(1)
def test_taps_leave_together(name):
    module, sizes, fold, taps = TAPS[name]
    operator = convolution(module, shift=len(name) % 3)
    plan = check(operator, image(BYTES, module.in_channels, *sizes), fold=fold)
    assert plan.parameters["TAP_LANES"] == taps and plan.cycles <= fold
    beat = taps * plan.parameters["LANES"]
    assert plan.parameters["IN_LANES"] % beat == 0


def drawn_convolution(draw):
    """A convolution, sizes of an image that it accepts, and a fold."""
    kernel = tuple(draw.choice([1, 2, 3, 3, 4]) for _ in range(draw.choice([1, 2, 2, 2])))
    groups = draw.choice([1, 1, 1, 2])
    inputs, outputs = groups * draw.choice([1, 1, 2, 3]), 2 * groups * draw.choice([1, 2])
    stride, padding, dilation = (
        tuple(draw.choice(choices) for _ in kernel)
        for choices in ([1, 1, 2, 3], [0, 1, 1, 2], [1, 1, 2])
    )
    sizes = tuple(
        max(draw.randint(1, 8), (taps - 1) * apart + 1 - 2 * ahead)
        for taps, apart, ahead in zip(kernel, dilation, padding, strict=True)
    )
    kind = nn.Conv1d if len(kernel) == 1 else nn.Conv2d
    module = kind(inputs, outputs, kernel, stride, padding, dilation, groups)
    windows = module(torch.zeros(1, inputs, *sizes))[0, 0].numel()
    taps = torch.Size(kernel).numel()
    return module, sizes, draw.choice([1, windows, groups * windows, windows * taps // 2 + 1])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_convolutions_of_drawn_shapes(seed):
    module, sizes, fold = drawn_convolution(random.Random(seed))
    operator = convolution(module, shift=seed % 3, seed=seed)
    check(operator, image(BYTES, module.in_channels, *sizes), fold=fold)


@pytest.mark.long
@pytest.mark.parametrize("simulator", ["verilator", "icarus"])
def test_a_model_whose_taps_leave_together(simulator, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, (3, 2), 2), nn.ReLU()
    )
    batch = {"input": torch.randn(12, 1, 7, 6)}
    rule = {"config": {"name": "integer", "width": 8, "frac_width": 5}}
    rules = {"by": "type", "conv2d": rule, "relu": rule}
    mg, _ = passes.quantize_transform_pass(MaseGraph(model, dummy_in=batch), rules)
    design = check_graph(integer_form(mg), batch, 42, tmp_path, simulator).design
    taps = [each.plan.parameters.get("TAP_LANES") for each in design.netlist.instances]
    assert taps[0] == 9


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.long
def test_convolution_in_groups(name):
    module, sizes, fold, lanes, profiles = GROUPED[name]
    operator = convolution(module, shift=len(name) % 3)
    plan = check(operator, image(BYTES, module.in_channels, *sizes), fold=fold, profiles=profiles)
    assert plan.out.shape[0] == module.out_channels
    (multipliers,) = plan.resources.multipliers.values()
    is_depthwise = plan.module == "chop_depthwise_conv"
    assert is_depthwise == (lanes is not None) and lanes in (None, multipliers)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long
def test_convolution(name):
    module, sizes, fold, profiles = CASES[name]
    operator = convolution(module, shift=len(name) % 3)
    plan = check(operator, image(BYTES, module.in_channels, *sizes), fold=fold, profiles=profiles)
    assert plan.out.shape[0] == module.out_channels


@pytest.mark.long
def test_convolution_of_codes_without_zero():
    edge = Edge.of(1.0, 3, 9)
    operator = convolution(nn.Conv2d(2, 2, 3, padding=1), edge)
    check(operator, image(edge, 2, 4, 4), fold=500, profiles=SOME)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Conv2d(4, 6, 3), "channels last"),
    ],
)
def test_convolutions_without_a_circuit_are_refused(module, message):
    with pytest.raises(ConfigError, match=message):
        check(convolution(module), drawn(BYTES, 4, 5, 5))
