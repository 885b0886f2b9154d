"""The rounding primitive, exhaustively on small ranges and at the ends of int64."""

from fractions import Fraction
from math import floor

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chop.nn.integer import round_shift, saturate, shift_and_saturate
from tests.subcases import subcases

ROUND = {"nearest_even": round, "floor": floor}  # Python rounds half to even
INT64 = st.integers(-(2**63), 2**63 - 1)


def exact(v, shift, rounding):
    return ROUND[rounding](Fraction(v) / Fraction(2) ** shift)


@subcases("rounding", ROUND)
@subcases("shift", range(-3, 13))
def test_every_small_integer_is_rounded_as_a_fraction(shift, rounding):
    values = range(-(2**10), 2**10 + 1)
    found = round_shift(torch.tensor(values), shift, rounding)
    assert found.tolist() == [exact(v, shift, rounding) for v in values]


@settings(deadline=None)
@given(INT64, st.integers(0, 200), st.sampled_from(sorted(ROUND)))
def test_any_integer_by_any_shift(v, shift, rounding):
    assert round_shift(torch.tensor(v), shift, rounding).item() == exact(v, shift, rounding)


@settings(deadline=None)
@given(INT64, st.integers(1, 61), st.sampled_from([-1, 0, 1]))
def test_halves_and_their_neighbors(v, shift, beside):
    v = max(-(2**62), min(2**62, (v >> shift << shift) + 2 ** (shift - 1))) + beside
    assert round_shift(torch.tensor(v), shift).item() == exact(v, shift, "nearest_even")


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-(2**62), 2**62), st.integers(0, 62)), min_size=1))
def test_a_shift_for_each_value(pairs):
    values, shifts = (torch.tensor(part) for part in zip(*pairs, strict=True))
    expected = [exact(v, shift, "nearest_even") for v, shift in pairs]
    assert round_shift(values, shifts).tolist() == expected


@settings(deadline=None)
@given(INT64, st.integers(-200, 200), st.integers(2, 32), st.sampled_from(sorted(ROUND)))
def test_saturation_hides_every_overflow(v, shift, width, rounding):
    low, high = -(2 ** (width - 1)), 2 ** (width - 1) - 1
    found = shift_and_saturate(torch.tensor(v), shift, low, high, rounding).item()
    assert found == max(low, min(high, exact(v, shift, rounding)))


def test_saturation_takes_the_nearest_end():
    assert saturate(torch.tensor([-9, -4, 0, 3, 9]), -4, 3).tolist() == [-4, -4, 0, 3, 3]
