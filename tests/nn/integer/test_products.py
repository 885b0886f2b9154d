"""Products of activations, and by constants, against Python's integers."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chop.errors import ConfigError
from chop.formats import QuantSpec
from chop.nn.integer import Call, Edge, IntegerMatmul, IntegerMul, IntegerScale
from chop.nn.quantized import QuantCall
from tests.nn.integer import oracles as o


def signed(width, step=1.0):
    return Edge.of(step, -(2 ** (width - 1)), 2 ** (width - 1) - 1)


@settings(max_examples=50, deadline=None)
@given(o.integers(), o.integers(), st.integers(1, 40))
def test_matrix_products_are_exact(first, second, terms):
    spec = QuantSpec(data_in=first, weight=second)
    module = QuantCall(torch.matmul, {"input": "data_in", "other": "weight"}, spec)
    a, b = o.randn(2, 3, terms, seed=1).double(), o.randn(2, terms, 4, seed=2).double()
    edges = [o.read(first), o.read(second)]
    operator = IntegerMatmul.from_quantized(module, edges, o.SMALL, Call([a.shape, b.shape]))
    codes = operator(o.get_codes(a, first), o.get_codes(b, second))
    assert torch.equal(operator.out.decode(codes), module(a, b))


@settings(max_examples=50, deadline=None)
@given(o.integers(), o.integers(), st.integers(1, 40))
def test_bounds_of_matrix_products_are_reached_and_kept(first, second, terms):
    a, b = o.read(first), o.read(second)
    operator = IntegerMatmul(a, b, terms)
    ends = torch.tensor([[a.low], [a.high]]).expand(2, terms)
    found = operator(ends, torch.tensor([[b.low, b.high]]).expand(terms, 2))
    assert (operator.out.low, operator.out.high) == (found.min(), found.max())


def test_products_beyond_float64_are_exact():
    a, b = signed(28), signed(28)
    codes_a = torch.randint(a.low, a.high, (3, 5), generator=torch.Generator().manual_seed(0))
    codes_b = codes_a.T.contiguous() + 1
    found = IntegerMatmul(a, b, 5)(codes_a, codes_b).tolist()
    columns = codes_b.T.tolist()
    expected = [[sum(map(int.__mul__, x, y)) for y in columns] for x in codes_a.tolist()]
    assert found == expected
    assert max(abs(x) for row in found for x in row) > 2**53


def test_products_beyond_int64_are_refused():
    with pytest.raises(ConfigError, match="IntegerMatmul: integers from .* need 65 bits"):
        IntegerMatmul(signed(30), signed(30), 32)
    with pytest.raises(ConfigError, match="more than 62"):
        IntegerMul(signed(32), signed(32))


@settings(deadline=None)
@given(st.tuples(*[st.integers(-(2**15), 2**15)] * 4))
def test_products_of_elements(ends):
    a, b = Edge.of(0.5, *sorted(ends[:2])), Edge.of(0.3, *sorted(ends[2:]))
    operator = IntegerMul.from_quantized(None, [a, b], o.SMALL)
    codes_a, codes_b = torch.tensor([[a.low], [a.high]]), torch.tensor([b.low, b.high])
    found = operator(codes_a, codes_b)
    assert found.tolist() == [[x * y for y in (b.low, b.high)] for x in (a.low, a.high)]
    assert (operator.out.low, operator.out.high) == (found.min(), found.max())
    assert operator.out.scalar_step == 0.5 * 0.3


@settings(deadline=None)
@given(st.floats(2.0**-100, 2.0**100, width=32), st.booleans(), st.integers(-(2**20), 2**20))
def test_a_constant_is_a_significand_and_an_exponent(factor, is_negative, code):
    factor = -factor if is_negative else factor
    operator = IntegerScale(signed(22, 0.25), factor)
    value = Fraction(operator.out.scalar_step) * operator(torch.tensor(code)).item()
    assert value == Fraction(factor) * Fraction(0.25) * code
    assert operator.factor % 2 == 1
    assert operator.out.bits <= 22 + 24
    ends = operator(torch.tensor([-(2**21), 2**21 - 1]))
    assert (operator.out.low, operator.out.high) == (ends.min(), ends.max())


def test_a_power_of_two_changes_no_code_and_zero_is_refused():
    assert IntegerScale(signed(8), 2.0**-7).factor == 1
    assert IntegerScale(signed(8), 12**-0.5).factor.bit_length() <= 24
    with pytest.raises(ConfigError, match="nonzero factor, got 0.0"):
        IntegerScale(signed(8), 0.0)
