"""Sums, differences, negation and ReLU against Python's integers."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chop.errors import ConfigError
from chop.nn.integer import Call, Edge, IntegerAdd, IntegerNegate, IntegerReLU, IntegerSub
from tests.nn.integer import oracles as o

SIGNS = {IntegerAdd: 1, IntegerSub: -1}


@st.composite
def coded(draw):
    """An edge and codes within its bounds, both bounds among them."""
    low, high = sorted(draw(st.tuples(*[st.integers(-(2**15), 2**15)] * 2)))
    step = 2.0 ** draw(st.integers(-8, 8))
    middle = draw(st.integers(low, high))
    return Edge.of(step, low, high), [low, middle, high]


@pytest.mark.parametrize("kind", SIGNS)
@settings(deadline=None)
@given(coded(), coded())
def test_sums_are_exact_and_reach_their_bounds(kind, first, second):
    (a, codes_a), (b, codes_b) = first, second
    operator = kind.from_quantized(None, [a, b], o.SMALL)
    found = operator(torch.tensor(codes_a).view(-1, 1), torch.tensor(codes_b))
    for code_a, row in zip(codes_a, found.tolist(), strict=True):
        for code_b, code in zip(codes_b, row, strict=True):
            exact = code_a * Fraction(a.scalar_step)
            exact += SIGNS[kind] * code_b * Fraction(b.scalar_step)
            assert code * Fraction(operator.out.scalar_step) == exact
    assert (operator.out.low, operator.out.high) == (found.min(), found.max())


def test_steps_without_a_common_one_are_refused():
    with pytest.raises(ConfigError, match="the same format"):
        IntegerAdd(Edge.of(0.3, -8, 7), Edge.of(0.1, -8, 7))
    with pytest.raises(ConfigError, match="more than 62"):
        IntegerAdd(Edge.of(2.0**60, -8, 7), Edge.of(1.0, -8, 7))
    inputs = [Edge.of(1.0, -8, 7)] * 2
    with pytest.raises(ConfigError, match="alpha=1, got 2"):
        IntegerAdd.from_quantized(None, inputs, o.SMALL, Call(arguments={"alpha": 2}))


@settings(deadline=None)
@given(coded())
def test_relu_keeps_what_is_above_zero(given):
    edge, codes = given
    operator = IntegerReLU.from_quantized(None, [edge], o.SMALL)
    assert operator(torch.tensor(codes)).tolist() == [max(code, 0) for code in codes]
    assert (operator.out.low, operator.out.high) == (max(codes[0], 0), max(codes[-1], 0))


@settings(deadline=None)
@given(coded())
def test_negation_exchanges_the_bounds(given):
    edge, codes = given
    operator = IntegerNegate.from_quantized(None, [edge], o.SMALL)
    assert operator(torch.tensor(codes)).tolist() == [-code for code in codes]
    assert (operator.out.low, operator.out.high) == (-codes[-1], -codes[0])
