"""Pooling, sums and means against rational numbers and against torch in float64."""

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from chop.errors import ConfigError
from chop.formats import QuantSpec
from chop.nn import integer as i
from chop.nn import quantized as q
from chop.nn.integer import Call, Edge, Grid, Requantize
from tests.nn.integer import oracles as o

SPEC = QuantSpec()
BYTES = Edge.of(0.25, -128, 127)
MAXIMA = [
    (q.QuantMaxPool1d(3, 2, 1, config=SPEC), i.IntegerMaxPool1d, (2, 3, 11)),
    (q.QuantMaxPool2d(2, config=SPEC), i.IntegerMaxPool2d, (2, 3, 8, 9)),
    (
        q.QuantMaxPool2d((3, 2), 2, 1, 2, ceil_mode=True, config=SPEC),
        i.IntegerMaxPool2d,
        (1, 2, 9, 9),
    ),
]
AVERAGES = [
    (q.QuantAvgPool1d(3, 2, 1, config=SPEC), i.IntegerAvgPool1d, (2, 3, 11)),
    (q.QuantAvgPool1d(4, 3, 2, ceil_mode=True, config=SPEC), i.IntegerAvgPool1d, (2, 3, 12)),
    (q.QuantAvgPool2d(2, config=SPEC), i.IntegerAvgPool2d, (2, 3, 8, 9)),
    (
        q.QuantAvgPool2d(3, 2, 1, count_include_pad=False, config=SPEC),
        i.IntegerAvgPool2d,
        (2, 3, 7, 8),
    ),
    (
        q.QuantAvgPool2d((3, 5), (2, 3), (1, 2), ceil_mode=True, config=SPEC),
        i.IntegerAvgPool2d,
        (1, 2, 10, 9),
    ),
    (
        q.QuantAvgPool2d(3, ceil_mode=True, divisor_override=7, config=SPEC),
        i.IntegerAvgPool2d,
        (1, 2, 10, 9),
    ),
    (q.QuantAdaptiveAvgPool1d(4, config=SPEC), i.IntegerAdaptiveAvgPool1d, (2, 3, 10)),
    (q.QuantAdaptiveAvgPool2d((1, 1), config=SPEC), i.IntegerAdaptiveAvgPool2d, (2, 3, 5, 7)),
    (q.QuantAdaptiveAvgPool2d((3, None), config=SPEC), i.IntegerAdaptiveAvgPool2d, (2, 3, 7, 4)),
]


def codes_like(shape, edge=BYTES):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(edge.low, edge.high + 1, shape, generator=generator)


def named(x):
    return f"{type(x).__name__}-{x.extra_repr()}" if isinstance(x, nn.Module) else ""


@pytest.mark.parametrize(("module", "kind", "shape"), MAXIMA, ids=named)
def test_maxima_are_those_of_torch(module, kind, shape):
    operator, codes = (
        kind.from_quantized(module, [BYTES], o.SMALL, Call([shape])),
        codes_like(shape),
    )
    found = operator(codes)
    assert found.dtype == torch.int64
    assert torch.equal(operator.out.decode(found), module(BYTES.decode(codes)))
    assert (operator.out.low, operator.out.high) == (-128, 127)


def test_a_maximum_of_a_call_and_of_wide_codes():
    call = Call([(1, 2, 6)], {"kernel_size": 2})
    operator = i.IntegerMaxPool1d.from_quantized(None, [BYTES], o.SMALL, call)
    codes = codes_like((1, 2, 6))
    assert torch.equal(operator(codes), F.max_pool1d(codes.double(), 2).long())
    with pytest.raises(ConfigError, match="below 2\\^53"):
        i.IntegerMaxPool1d.from_quantized(None, [Edge.of(1.0, 0, 2**53)], o.SMALL, call)


@pytest.mark.parametrize(("module", "kind", "shape"), AVERAGES, ids=named)
def test_averages_are_those_of_torch(module, kind, shape):
    operator, codes = (
        kind.from_quantized(module, [BYTES], o.SMALL, Call([shape])),
        codes_like(shape),
    )
    found, expected = operator(codes), module(BYTES.decode(codes))
    torch.testing.assert_close(operator.out.decode(found), expected, rtol=1e-12, atol=1e-12)
    exact = [Fraction(k, 4 * operator.out.divisor) for k in found.flatten().tolist()]
    requantized = Requantize(operator.out, Grid(0.5, -20, 20))(found)
    assert requantized.flatten().tolist() == [max(-20, min(20, round(2 * x))) for x in exact]


@pytest.mark.parametrize(("module", "kind", "shape"), AVERAGES, ids=named)
def test_bounds_of_averages_are_reached(module, kind, shape):
    operator = kind.from_quantized(module, [BYTES], o.SMALL, Call([shape]))
    for end, bound in ((-128, operator.out.low), (127, operator.out.high)):
        found = operator(torch.full(shape, end))
        assert (found.min() if end < 0 else found.max()) == bound


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.sampled_from([0, 1, -1, None, (1, 2), [-2, -3]]))
def test_sums_and_means_are_exact(rows, columns, dim):
    shape = (3, rows, columns)
    codes = codes_like(shape)
    for keepdim in (False, True):
        call = Call([shape], {"dim": dim, "keepdim": keepdim})
        total = i.IntegerSum.from_quantized(None, [BYTES], o.SMALL, call)
        mean = i.IntegerMean.from_quantized(None, [BYTES], o.SMALL, call)
        assert torch.equal(total(codes), codes.sum(dim, keepdim))
        assert torch.equal(mean(codes), total(codes))
        expected = BYTES.decode(codes).mean(dim, keepdim)
        torch.testing.assert_close(mean.out.decode(mean(codes)), expected, rtol=1e-12, atol=0)
        assert total(torch.full(shape, -128)).min() == total.out.low == mean.out.low
        assert total(torch.full(shape, 127)).max() == total.out.high == mean.out.high


def test_channels_stay_where_they_are_and_are_not_summed():
    edge = Edge(torch.tensor([1.0, 0.5], dtype=torch.float64), -3, -8, 7)
    codes = codes_like((2, 2, 4, 4), edge)
    mean = i.IntegerMean.from_quantized(None, [edge], o.SMALL, Call([codes.shape], {"dim": [2, 3]}))
    assert mean.out.axis == -1
    assert torch.equal(mean.out.decode(mean(codes)), edge.decode(codes).mean((2, 3)))
    with pytest.raises(ConfigError, match="different steps"):
        i.IntegerSum.from_quantized(None, [edge], o.SMALL, Call([codes.shape], {"dim": 1}))
