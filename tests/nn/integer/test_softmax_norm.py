"""Softmax, LayerNorm and RMSNorm: against Python's integers, and against the operators in float."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chop.errors import ConfigError
from chop.formats import Integer, QuantSpec
from chop.nn import quantized as q
from chop.nn.integer import (
    Call,
    Edge,
    Grid,
    IntegerLayerNorm,
    IntegerOptions,
    IntegerRMSNorm,
    IntegerSoftmax,
    Requantize,
)
from chop.nn.integer.norm import integer_sqrt
from tests.nn.integer import oracles as o

EIGHT, AFFINE = Integer(8, 4), Integer(8, 5)
MODES = ("small", "exact")
NORMS = {q.QuantLayerNorm: IntegerLayerNorm, q.QuantRMSNorm: IntegerRMSNorm}


def softmax(edge, size, mode="small", dim=-1):
    return IntegerSoftmax(edge, size, dim, IntegerOptions(mode))


def norm(kind, data_in, count, mode, seed=0):
    torch.manual_seed(seed)
    module = kind(count, config=QuantSpec(data_in, AFFINE, AFFINE)).eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    edge = o.read(data_in)
    return module, NORMS[kind].from_quantized(module, [edge], IntegerOptions(mode))


def get_rows(edge, count, seed):
    """Rows of codes: random, at the ends, constant, and nearly so."""
    generator = torch.Generator().manual_seed(seed)
    random = torch.randint(edge.low, edge.high + 1, (20, count), generator=generator)
    ends = torch.where(random[:5] > 0, edge.high, edge.low)
    one_up = torch.full((1, count), edge.low)
    one_up[0, 0] = edge.high
    small = torch.zeros(1, count).long()
    small[0, 0] = 1
    constant = torch.tensor([edge.low, 0, edge.high]).view(-1, 1).expand(-1, count)
    return torch.cat([random, ends, one_up, small, constant])


@settings(deadline=None)
@given(st.integers(0, 2**62))
def test_integer_roots(v):
    near = [v, math.isqrt(v) ** 2, max(math.isqrt(v) ** 2 - 1, 0)]
    assert integer_sqrt(torch.tensor(near)).tolist() == [math.isqrt(x) for x in near]


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=30, deadline=None)
@given(o.integers(), st.integers(1, 20), st.integers(0, 99))
def test_softmax_is_the_formula_in_unbounded_integers(mode, data_in, size, seed):
    edge = o.read(data_in)
    operator, rows = softmax(edge, size, mode), get_rows(edge, size, seed)
    table = operator.exponentials.tolist()
    assert table[0] == {"small": 2**16, "exact": 2**28}[mode] - 1
    for row, found in zip(rows.tolist(), operator(rows).tolist(), strict=True):
        e = [table[max(row) - code] for code in row]
        reciprocal = 2**operator.places // sum(e)
        assert found == [x * reciprocal for x in e]
        assert sum(found) <= 2**operator.places == operator.out.high
        assert min(found) >= 0 == operator.out.low


def test_the_bound_of_softmax_is_nearly_reached():
    operator = softmax(o.read(EIGHT), 4)
    found = operator(torch.tensor([-128, -128, -128, 127])).max().item()
    assert Fraction(found, operator.out.high) > 1 - Fraction(1, 2**13)


def test_hidden_elements_are_zero_and_no_row_divides_by_zero():
    operator = softmax(o.read(EIGHT), 3)
    codes = torch.tensor([[5, 100, 5], [1, 2, 3], [7, 7, 7]])
    kept = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    found = operator(codes, kept)
    assert found[0, 1] == 0
    assert found[0, 0] == found[0, 2] > 0.499 * 2**operator.places
    assert found[1].tolist() == [0, 0, 0]
    assert torch.equal(found[2], operator(codes)[2])


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax_along_a_dimension(dim):
    module = q.QuantSoftmax(dim, config=QuantSpec(EIGHT))
    shape = (4, 6, 5)
    operator = IntegerSoftmax.from_quantized(module, [o.read(EIGHT)], o.EXACT, Call([shape]))
    x = o.randn(*shape, scale=3)
    found = operator.out.decode(operator(o.get_codes(x, EIGHT)))
    torch.testing.assert_close(found.float(), module(x), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("mode", "share"), [("small", 5e-4), ("exact", 1e-5)])
def test_codes_of_softmax_differ_rarely_and_by_one(mode, share):
    x, grid = o.randn(20000, 17, scale=3), Grid.of(Integer(8, 7))
    operator = softmax(o.read(EIGHT), 17, mode)
    found = Requantize(operator.out, grid)(operator(o.get_codes(x, EIGHT)))
    difference = (found - grid.codes(torch.softmax(EIGHT.round(x), -1))).abs()
    assert difference.max() <= 1
    assert difference.double().mean() <= share


def test_wide_scores_are_refused():
    with pytest.raises(ConfigError, match="inputs from 0 to 65536 exceed the 2\\^16 entries"):
        softmax(Edge.of(1.0, 0, 2**16), 4)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", NORMS)
@settings(max_examples=25, deadline=None)
@given(o.integers(), st.integers(1, 70), st.integers(0, 99))
@pytest.mark.sampled(3)
def test_norms_are_the_formula_in_unbounded_integers(kind, mode, data_in, count, seed):
    _, operator = norm(kind, data_in, count, mode, seed)
    rows = get_rows(o.read(data_in), count, seed)
    weight, bias, limit = operator.weight.tolist(), operator.bias.tolist(), operator.limit
    for row, found in zip(rows.tolist(), operator(rows).tolist(), strict=True):
        total = sum(row) if operator.is_centered else 0
        variance = count * sum(x * x for x in row) - total**2
        root = math.isqrt(variance * 4**operator.root + operator.eps)
        reciprocal = min(2**operator.reciprocal // root, 2 ** (operator.reciprocal - operator.root))
        places = 2 ** (operator.reciprocal - operator.root - operator.fraction)
        u = [round(Fraction((count * x - total) * reciprocal, places)) for x in row]
        assert max(map(abs, u)) <= limit
        y = [v * g * 2**operator.shift + b for v, g, b in zip(u, weight, bias, strict=True)]
        assert found == y
        assert operator.out.low <= min(y) <= max(y) <= operator.out.high


@pytest.mark.parametrize("kind", NORMS)
def test_bounds_of_norms_are_nearly_reached(kind):
    _, operator = norm(kind, EIGHT, 50, "exact")
    channel = operator.weight.abs().argmax()
    row = torch.full((1, 50), -128 if operator.is_centered else 0)
    row[0, channel] = 127
    normalized = (operator(row) - operator.bias)[0, channel].abs() / operator.weight[channel].abs()
    assert normalized >= 0.85 * (operator.limit << operator.shift)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize(("mode", "share"), [("small", 5e-4), ("exact", 2e-4)])
def test_codes_of_norms_differ_rarely_and_by_one(kind, mode, share):
    module, operator = norm(kind, EIGHT, 64, mode)
    x, grid = o.randn(5000, 64, scale=1.5), Grid.of(Integer(8, 4))
    found = Requantize(operator.out, grid)(operator(o.get_codes(x, EIGHT)))
    with torch.no_grad():
        expected = torch.cat([module(part) for part in x.split(200)])
    difference = (found - grid.codes(expected)).abs()
    assert difference.max() <= 1
    assert difference.double().mean() <= share


@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.5])
@pytest.mark.parametrize("kind", NORMS)
def test_rows_that_are_constant_or_nearly_so(kind, eps):
    torch.manual_seed(0)
    module = kind(16, eps=eps, config=QuantSpec(EIGHT)).eval()
    module.spec = QuantSpec(EIGHT, Integer(8, 6), Integer(8, 6))
    operator = NORMS[kind].from_quantized(module, [o.read(EIGHT)], o.EXACT)
    codes = torch.zeros(3, 16).long()
    codes[1], codes[2, 0] = 5, 1
    with torch.no_grad():
        expected = module.double()(o.read(EIGHT).decode(codes))
    found = operator.out.decode(operator(codes))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_norms_over_two_dimensions_and_without_parameters():
    module = q.QuantLayerNorm((4, 6), elementwise_affine=False, config=QuantSpec(EIGHT))
    operator = IntegerLayerNorm.from_quantized(module, [o.read(EIGHT)], o.EXACT)
    x = EIGHT.round(o.randn(3, 4, 6))
    found = operator.out.decode(operator(o.get_codes(x, EIGHT)))
    torch.testing.assert_close(found.float(), module(x), rtol=1e-4, atol=1e-5)


def test_norms_of_wide_inputs_are_refused():
    with pytest.raises(ConfigError, match="more than 62"):
        norm(q.QuantLayerNorm, Integer(30, 20), 16, "small")
