"""Requantizers against fractions."""

from fractions import Fraction
from math import floor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chop.errors import ConfigError
from chop.nn.integer import Edge, Grid, Requantize

ROUND = {"nearest_even": round, "floor": floor}
CODES = st.lists(st.integers(-(2**30), 2**30 - 1), min_size=1, max_size=20)


def exact(value, grid):
    found = ROUND[grid.rounding](Fraction(value) / Fraction(grid.step))
    return max(grid.low, min(grid.high, found))


def wide_edge(step, divisor=1):
    return Edge.of(step, -(2**30), 2**30 - 1, divisor)


@settings(deadline=None)
@given(
    CODES, st.integers(-40, 40), st.integers(2, 16), st.integers(1, 130), st.sampled_from([*ROUND])
)
def test_powers_of_two_and_divisors_are_exact(codes, shift, width, divisor, rounding):
    shift = shift if divisor == 1 else max(shift, -20)
    grid = Grid(2.0**shift, -(2 ** (width - 1)), 2 ** (width - 1) - 1, rounding)
    found = Requantize(wide_edge(1.0, divisor), grid)(torch.tensor(codes)).tolist()
    assert found == [exact(Fraction(code, divisor), grid) for code in codes]


@settings(deadline=None)
@given(st.lists(st.integers(-200, 200), min_size=1), st.integers(1, 64), st.integers(0, 3))
def test_halves_of_a_mean(codes, divisor, shift):
    grid = Grid(0.5**shift, -128, 127)
    found = Requantize(Edge.of(1.0, -200, 200, divisor), grid)(torch.tensor(codes)).tolist()
    assert found == [exact(Fraction(code, divisor), grid) for code in codes]


@settings(deadline=None)
@given(CODES, st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_other_ratios_have_sixteen_bits(codes, step, of_grid):
    grid = Grid(of_grid, -128, 127)
    requantize = Requantize(wide_edge(step), grid)
    multiplier = int(requantize.multiplier)
    ratio = Fraction(multiplier) / Fraction(2) ** requantize.shift
    assert multiplier < 2**16
    assert abs(ratio / (Fraction(step) / Fraction(of_grid)) - 1) <= Fraction(1, 2**16)
    expected = [max(-128, min(127, round(code * ratio))) for code in codes]
    assert requantize(torch.tensor(codes)).tolist() == expected


def test_channels_share_a_shift():
    steps = torch.tensor([0.3, 0.02, 0.001], dtype=torch.float64)
    requantize = Requantize(Edge(steps, -3, -(2**20), 2**20), Grid(1.0, -128, 127))
    codes = torch.arange(-(2**20), 2**20, 12345).view(1, 1, -1, 1).expand(2, 3, -1, 1)
    found = requantize(codes)
    assert found.shape == codes.shape
    for channel, step in enumerate(steps.tolist()):
        values = (codes[:, channel].double() * step).clamp(-128, 127)
        assert (found[:, channel] - values).abs().max() <= 0.5 + 128 * 2**-7


def test_powers_of_two_per_channel_are_exact():
    steps = torch.tensor([1.0, 0.25, 8.0], dtype=torch.float64)
    requantize = Requantize(Edge(steps, -1, -1000, 1000), Grid(2.0, -128, 127))
    codes = torch.arange(-1000, 1001).view(-1, 1).expand(-1, 3)
    expected = [
        [exact(k * Fraction(s), Grid(2.0, -128, 127)) for s in (1, 0.25, 8)]
        for k in range(-1000, 1001)
    ]
    assert requantize(codes).tolist() == expected


@pytest.mark.parametrize(("low", "expected"), [(-1, [-1, 1, 1]), (0, [0, 1, 1])])
def test_signs(low, expected):
    requantize = Requantize(wide_edge(0.3), Grid(1.0, low, 1, "sign"))
    assert requantize(torch.tensor([-5, 0, 7])).tolist() == expected


def test_a_threshold_is_compared_exactly():
    requantize = Requantize(wide_edge(0.25), Grid(1.0, -1, 1, "threshold", 0.5))
    codes = torch.tensor([-3, -2, -1, 0, 1, 2, 3])
    assert requantize(codes).tolist() == [-1, 0, 0, 0, 0, 0, 1]


def test_bounds_are_those_of_the_input_rounded():
    assert (Requantize(Edge.of(1.0, 0, 100), Grid(4.0, -128, 127)).out.high) == 25
    narrow = Requantize(Edge.of(1.0, -3, 1000), Grid(1.0, -128, 127)).out
    assert (narrow.low, narrow.high, narrow.bits) == (-3, 127, 8)


def test_too_wide_products_are_refused():
    with pytest.raises(ConfigError, match="bits, more than 62"):
        Requantize(Edge.of(0.3, -(2**60), 2**60), Grid(0.001, -128, 127))
    with pytest.raises(ConfigError, match="bits, more than 62"):
        Requantize(Edge.of(1.0, -(2**60), 2**60, 3), Grid(1.0, -128, 127))


@settings(deadline=None)
@given(st.lists(st.integers(-(2**61), 2**61 - 1), min_size=1), st.floats(0.5, 2.0))
def test_wide_codes_are_multiplied_in_halves(codes, ratio):
    grid = Grid(2.0**44, -(2**15), 2**15 - 1)
    requantize = Requantize(Edge.of(ratio, -(2**61), 2**61 - 1), grid)
    exact = Fraction(int(requantize.multiplier)) / Fraction(2) ** requantize.shift
    expected = [max(grid.low, min(grid.high, round(code * exact))) for code in codes]
    assert requantize(torch.tensor(codes)).tolist() == expected
