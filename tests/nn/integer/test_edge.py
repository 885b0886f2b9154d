"""Edges and grids."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chop.formats import Binary, Float, Integer, MXInt, ScaleInteger, Ternary
from chop.nn.integer import Decode, Edge, Encode, Grid
from chop.nn.integer.edge import bit_width, shift_between
from tests.subcases import subcases

GRIDS = {
    "signed": Integer(8, 4),
    "unsigned": Integer(5, -2, is_signed=False),
    "floored": Integer(6, 3, floor=True),
    "scaled": ScaleInteger(8, scales=(0.037,)),
    "wide": ScaleInteger(16, scales=(1e-4,)),
    "signs": Binary(),
    "bits": Binary(bipolar=False),
    "scaled signs": Binary(scaling_factor=True, scales=(0.3,)),
    "digits": Ternary(threshold=0.3),
    "scaled digits": Ternary(threshold=0.3, scaling_factor=True, scales=(0.7,)),
}
WITHOUT = {
    "waits": Integer(8, "auto"),
    "follows the data": ScaleInteger(8),
    "one scale per channel": ScaleInteger(8, granularity="channel", scales=(0.1, 0.2)),
    "blocks": MXInt(8),
    "threshold follows the data": Ternary(),
    "random": Binary(stochastic=True),
    "float": Float(),
}


@settings(deadline=None)
@given(st.integers(-(2**40), 2**40), st.integers(0, 2**40))
def test_bits_hold_the_bounds_and_one_less_does_not(low, width):
    bits = bit_width(low, low + width)
    assert -(2 ** (bits - 1)) <= low and low + width < 2 ** (bits - 1)
    assert bits == 1 or not (-(2 ** (bits - 2)) <= low and low + width < 2 ** (bits - 2))


@settings(deadline=None)
@given(st.floats(1e-30, 1e30), st.integers(-60, 60))
def test_the_shift_between_two_steps(step, shift):
    assert shift_between(step * 2.0**shift, step) == shift
    assert shift_between(step, step * 1.25) is None


@subcases("number_format", GRIDS.values(), ids=GRIDS)
def test_codes_on_a_grid_are_what_the_format_rounds_to(number_format):
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([torch.randn(2000, generator=generator) * 9, torch.linspace(-4, 4, 1025)])
    x = torch.cat([x, torch.tensor([0.0, -0.0, torch.inf, -torch.inf])])
    grid = Grid.of(number_format)
    codes = Encode(grid)(x)
    assert codes.dtype == torch.int64
    assert grid.low == codes.min() and codes.max() == grid.high
    assert torch.equal(Decode(grid.edge)(codes), number_format.round(x) + 0.0)


@pytest.mark.parametrize("number_format", WITHOUT.values(), ids=WITHOUT)
def test_formats_that_follow_the_data_have_no_grid(number_format):
    assert Grid.of(number_format) is None


def test_not_a_number_is_zero():
    assert Encode(Grid(0.5, -8, 7))(torch.tensor([torch.nan])).tolist() == [0]


def test_steps_lie_along_the_channels():
    edge = Edge(torch.tensor([0.5, 0.25], dtype=torch.float64), -3, -4, 4, divisor=2)
    codes = torch.ones(1, 2, 1, 3, dtype=torch.int64)
    assert edge.decode(codes).flatten().tolist() == [0.25] * 3 + [0.125] * 3
    assert Decode(edge)(codes).flatten().tolist() == [0.25] * 3 + [0.125] * 3
    assert edge.bits == 4
