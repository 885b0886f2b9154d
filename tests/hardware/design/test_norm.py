"""Circuit of LayerNorm and RMSNorm, against the operators."""

import math
from typing import NamedTuple

import pytest
import torch

from chop.nn.integer import Edge, IntegerLayerNorm, IntegerOptions, IntegerRMSNorm
from chop.nn.integer.norm import NormBits
from chop.nn.integer.parameters import IntegerParameter
from chop.nn.integer.weighted import Aligned
from tests.hardware.bench import PROFILES, check, drawn, needs_tools

pytestmark = needs_tools
SOME = ("uniform", "bursts")
BYTES = Edge.of(0.1, -128, 127)


def norm(kind, edge, shape, mode="small", shift=0, most=127, eps=1e-5):
    """A normalization with random parameters: weights up to `most`."""
    generator = torch.Generator().manual_seed(0)
    count = math.prod(shape)
    bits = NormBits.of(edge, count, eps, kind.is_centered, IntegerOptions(mode))
    weight = torch.randint(-most, most + 1, (count,), generator=generator)
    bias = torch.randint(-10000, 10001, (count,), generator=generator)
    parameter = IntegerParameter(weight, torch.ones(()).double())
    return kind(shape, Aligned(parameter, bias, shift), 1.0, bits)


class Case(NamedTuple):
    """A normalization and how it runs."""

    kind: type
    edge: Edge
    rows: int
    features: int
    fold: int
    mode: str = "small"
    shift: int = 0
    profiles: tuple[str, ...] = SOME


CASES = {
    "four_lanes": Case(IntegerLayerNorm, BYTES, 9, 48, 150, profiles=PROFILES),
    "one_lane": Case(IntegerLayerNorm, BYTES, 5, 48, 9999, shift=2, profiles=PROFILES),
    "fastest": Case(IntegerLayerNorm, BYTES, 17, 48, 1, profiles=("none", *SOME)),
    "exact": Case(IntegerLayerNorm, BYTES, 3, 48, 72, "exact"),
    "rms": Case(IntegerRMSNorm, Edge.of(0.1, -2048, 2047), 5, 13, 999, profiles=("none", *SOME)),
    "one_feature": Case(IntegerLayerNorm, Edge.of(0.1, 0, 1), 6, 1, 1),
    "off_center": Case(IntegerLayerNorm, Edge.of(0.1, 100, 127), 5, 7, 1, "exact", 1),
    "wide": Case(IntegerLayerNorm, Edge.of(0.1, -(2**24), 2**24), 4, 6, 120),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(1)
def test_norm(name):
    case = CASES[name]
    entered = drawn(case.edge, case.rows, case.features)
    low, high = case.edge.low, case.edge.high
    entered.codes[0], entered.codes[1] = low, high
    entered.codes[2, :, 1:] = low
    entered.codes[3] = high - entered.codes[3] % 2
    operator = norm(case.kind, case.edge, (case.features,), case.mode, case.shift)
    plan = check(operator, entered, fold=case.fold, profiles=case.profiles)
    in_each_lane, of_the_row = 4, 1 + case.kind.is_centered
    assert plan.resources.products == plan.lanes[0] * in_each_lane + of_the_row


@pytest.mark.long
def test_norm_along_two_dimensions_in_another_order():
    positions = torch.stack([torch.randperm(12).view(3, 4)] * 2)
    positions[1], positions[0] = positions[0].clone(), positions[0] + 12
    operator = norm(IntegerLayerNorm, BYTES, (3, 4))
    check(operator, drawn(BYTES, 2, 3, 4, positions=positions), fold=99, profiles=SOME)


@pytest.mark.long
def test_norm_whose_weights_are_all_zero():
    operator = norm(IntegerRMSNorm, BYTES, (6,), most=0)
    check(operator, drawn(BYTES, 2, 6), profiles=SOME)
