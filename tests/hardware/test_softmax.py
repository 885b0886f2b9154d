"""Circuit of the softmax, against the operator."""

import pytest
import torch

from chop.errors import ConfigError
from chop.nn.integer import Edge, IntegerOptions, IntegerSoftmax
from tests.hardware.bench import PROFILES, check, drawn, needs_tools

pytestmark = needs_tools
SOME = ("uniform", "bursts")


@pytest.mark.parametrize(
    ("shape", "dim", "edge", "mode", "profiles"),
    [
        ((2, 17, 17), -1, Edge.of(0.05, -128, 127), "small", PROFILES),
        ((5, 17), 2, Edge.of(0.05, -128, 127), "exact", PROFILES),
        ((7, 13), -1, Edge.of(0.4, -9, 5), "small", SOME),
        ((6, 1), -1, Edge.of(0.5, -8, 7), "small", SOME),
        ((9, 2), -1, Edge.of(0.3, -3, 3), "small", ("none", *SOME)),
        ((3, 64), -1, Edge.of(0.01, -512, 511), "small", SOME),
        ((8, 5), -1, Edge.of(0.01, 2, 2), "exact", ("none", *SOME)),
    ],
)
@pytest.mark.sampled(1)
def test_softmax(shape, dim, edge, mode, profiles):
    operator = IntegerSoftmax(edge, shape[-1], dim, IntegerOptions(mode))
    entered = drawn(edge, *shape)
    entered.codes[0], entered.codes[1] = edge.low, edge.high
    check(operator, entered, profiles=profiles)


def test_softmax_along_the_dimension_that_travels_fastest():
    edge = Edge.of(0.05, -128, 127)
    operator = IntegerSoftmax(edge, 7, -2, IntegerOptions())
    positions = torch.arange(7 * 6).view(6, 7)[torch.randperm(6)].T
    plan = check(operator, drawn(edge, 7, 6, positions=positions), profiles=SOME)
    assert torch.equal(plan.out.positions, positions)


def test_masks_of_softmax_are_refused():
    edge = Edge.of(0.05, -128, 127)
    mask = drawn(Edge.of(1.0, 0, 1), 6, 7)
    with pytest.raises(ConfigError, match="a softmax with a mask has no circuit"):
        check(IntegerSoftmax(edge, 7, -1, IntegerOptions()), drawn(edge, 6, 7), mask)


def test_rows_of_softmax_that_are_interrupted_are_refused():
    edge = Edge.of(0.05, -128, 127)
    with pytest.raises(ConfigError, match="rows of 7 elements do not travel one after another"):
        check(IntegerSoftmax(edge, 7, -2, IntegerOptions()), drawn(edge, 7, 6))
