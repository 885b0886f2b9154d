"""Linear layers and convolutions: exact against Python's integers, bounds reached and kept."""

from fractions import Fraction
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chop.errors import ConfigError
from chop.formats import Binary, Float, Integer, MXInt, QuantSpec, ScaleInteger, Ternary
from chop.nn.integer import Grid, IntegerConv1d, IntegerConv2d, IntegerLinear, Requantize
from chop.nn.quantized import QuantConv1d, QuantConv2d, QuantLinear
from tests.nn.integer import oracles as o
from tests.subcases import subcases

EIGHT = Integer(8, 5)
WEIGHTS = {
    "integer": Integer(8, 6),
    "tensor": ScaleInteger(8),
    "channel": ScaleInteger(6, granularity="channel"),
    "row": ScaleInteger(8, granularity="row"),
    "given": ScaleInteger(8, granularity="channel", scales=(0.01, 0.02, 0.0173)),
    "mxint": MXInt(8, block_size=4),
    "binary": Binary(),
    "scaled binary": Binary(scaling_factor=True),
    "ternary": Ternary(),
    "scaled ternary": Ternary(scaling_factor=True),
}


def layer(kind, spec, seed=0, **arguments):
    torch.manual_seed(seed)
    return kind(**arguments, config=spec).eval()


def linear(spec, seed=0, inputs=5, outputs=3, **arguments):
    return layer(QuantLinear, spec, seed, in_features=inputs, out_features=outputs, **arguments)


def rounded_fractions(module, operand):
    values = module.quantize(operand, getattr(module, operand)).detach().double()
    return [[Fraction(v) for v in row] for row in values.view(values.size(0), -1).tolist()]


@settings(max_examples=60, deadline=None)
@given(o.specs(), st.integers(0, 99))
def test_a_linear_layer_is_exact_in_rational_numbers(spec, seed):
    module = linear(spec, seed)
    x = spec.data_in.round(o.randn(4, 5, seed=seed))
    integer = IntegerLinear.from_quantized(module, [o.read(spec.data_in)], o.SMALL)
    found = integer(o.get_codes(x, spec.data_in))
    weight, bias = rounded_fractions(module, "weight"), rounded_fractions(module, "bias")
    for row, sums in zip(x.tolist(), found.tolist(), strict=True):
        for w, (b,), code in zip(weight, bias, sums, strict=True):
            exact = sum((Fraction(a) * c for a, c in zip(row, w, strict=True)), b)
            assert Fraction(integer.out.scalar_step) * code == exact


def extremes(weight, low, high):
    """The inputs of the largest and of the smallest sum of each output."""
    rows = weight.view(weight.size(0), -1)
    return torch.where(rows > 0, high, low), torch.where(rows > 0, low, high)


@settings(max_examples=60, deadline=None)
@given(o.specs(), st.integers(0, 99))
def test_bounds_of_sums_are_reached_and_never_exceeded(spec, seed):
    module, edge = linear(spec, seed), o.read(spec.data_in)
    integer = IntegerLinear.from_quantized(module, [edge], o.SMALL)
    most, least = extremes(integer.weight, edge.low, edge.high)
    assert integer(most).diagonal().max() == integer(most).max() == integer.out.high
    assert integer(least).diagonal().min() == integer(least).min() == integer.out.low
    corners = torch.tensor(list(product((edge.low, edge.high), repeat=5)))
    assert integer(corners).max() == integer.out.high
    assert integer(corners).min() == integer.out.low


@subcases(
    "arguments",
    [
        {},
        {"stride": 2, "padding": 1},
        {"padding": "same"},
        {"dilation": 2, "groups": 2, "bias": False},
    ],
    ids=["plain", "strided", "same", "grouped"],
)
@subcases("dimensions", [1, 2])
@subcases("width", [2, 8, 16])
def test_convolutions_are_exact(arguments, dimensions, width):
    spec = QuantSpec(Integer(width, width - 3), Integer(width, width), Integer(width, width + 1))
    kinds = {1: (QuantConv1d, IntegerConv1d), 2: (QuantConv2d, IntegerConv2d)}
    quantized, integer_kind = kinds[dimensions]
    channels = {"in_channels": 4, "out_channels": 6, "kernel_size": 3}
    module = layer(quantized, spec, **channels, **arguments)
    x = o.randn(2, 4, *[9] * dimensions)
    integer = integer_kind.from_quantized(module, [o.read(spec.data_in)], o.SMALL)
    codes = o.get_codes(x, spec.data_in)
    expected = o.in_float64(module, x)
    assert torch.equal(integer.out.decode(integer(codes)), expected)


def test_bounds_of_a_convolution_are_reached():
    spec = QuantSpec.uniform(Integer(8, 6))
    module = layer(QuantConv2d, spec, in_channels=4, out_channels=6, kernel_size=3)
    edge = o.read(spec.data_in)
    integer = IntegerConv2d.from_quantized(module, [edge], o.SMALL)
    most, least = extremes(integer.weight, edge.low, edge.high)
    assert integer(most.view(6, 4, 3, 3)).max() == integer.out.high
    assert integer(least.view(6, 4, 3, 3)).min() == integer.out.low


@subcases("weight", WEIGHTS.values(), ids=WEIGHTS)
@subcases("data", [EIGHT, ScaleInteger(8, scales=(0.031,)), Binary()], ids=str)
def test_weights_with_scales_have_exact_products(weight, data):
    spec = QuantSpec(data, weight, Integer(8, 7))
    module = linear(spec, inputs=12)
    x = o.randn(50, 12)
    integer = IntegerLinear.from_quantized(module, [o.read(data)], o.SMALL)
    found = integer.out.decode(integer(o.get_codes(x, data)))
    expected = o.in_float64(module, x)
    # The bias is a multiple of the products' step. Scales are float32, results in float64.
    assert ((found - expected).abs() <= integer.out.step / 2 + 1e-6 * expected.abs()).all()


def test_tiny_blocks_do_not_make_all_codes_wide():
    module = linear(QuantSpec(EIGHT, MXInt(8, block_size=4), EIGHT), inputs=12)
    with torch.no_grad():
        module.weight[0, :4] = 2.0**-9 * module.weight[0, :4].sign()
        module.weight[1, :4] = 1e-30
    integer = IntegerLinear.from_quantized(module, [o.read(EIGHT)], o.SMALL)
    x = EIGHT.round(o.randn(50, 12))
    found = integer.out.decode(integer(o.get_codes(x, EIGHT)))
    assert integer.weight.abs().max() < 2 ** (7 + 16)
    torch.testing.assert_close(found, o.in_float64(module, x), rtol=0, atol=1e-28)


def test_masked_weights_are_zero():
    module = linear(QuantSpec(EIGHT, Binary(), EIGHT))
    module.register_buffer("weight_mask", torch.tensor([[True, False, True, True, False]] * 3))
    integer = IntegerLinear.from_quantized(module, [o.read(EIGHT)], o.SMALL)
    assert integer.weight[:, [1, 4]].eq(0).all()
    assert integer.weight[:, [0, 2, 3]].abs().eq(1).all()


@pytest.mark.parametrize(
    "weight", [ScaleInteger(8, granularity="channel"), Ternary(scaling_factor=True)], ids=str
)
def test_a_dead_channel_keeps_its_bias(weight):
    module = linear(QuantSpec(ScaleInteger(8, scales=(1e-4,)), weight, Integer(8, 4)))
    with torch.no_grad():
        module.weight[1] = 0
        module.bias[1] = 3.0
    integer = IntegerLinear.from_quantized(module, [o.read(module.spec.data_in)], o.SMALL)
    values = integer.out.decode(integer(torch.zeros(1, 5, dtype=torch.int64)))
    assert values[0, 1].item() == pytest.approx(3.0, rel=1e-5)
    assert integer.bias.abs().max() < 2**31
    requantize = Requantize(integer.out, Grid(2.0**-5, -128, 127))
    assert requantize(integer(torch.zeros(1, 5, dtype=torch.int64)))[0, 1] == 3 * 32


@pytest.mark.parametrize("weight", ["channel", "scaled binary", "scaled ternary"])
def test_a_bias_beside_coarse_products_keeps_its_bits(weight):
    bias = Integer(8, 9)
    module = linear(QuantSpec(EIGHT, WEIGHTS[weight], bias), inputs=12)
    integer = IntegerLinear.from_quantized(module, [o.read(EIGHT)], o.SMALL)
    x = o.randn(50, 12)
    found = integer.out.decode(integer(o.get_codes(x, EIGHT)))
    assert integer.bias.abs().max() < 2**31
    error = (found - o.in_float64(module, x)).abs().max()
    assert error <= 2.0**-9 * 2.0**-9 + 1e-6  # half of 2^-8 of the bias's step; float32 scales


def test_requantized_sums_are_the_readers_codes():
    module, reader = linear(QuantSpec.uniform(Integer(8, 6)), inputs=64), Integer(8, 4)
    x = o.randn(500, 64)
    integer = IntegerLinear.from_quantized(module, [o.read(Integer(8, 6))], o.SMALL)
    codes = Requantize(integer.out, Grid.of(reader))(integer(o.get_codes(x, Integer(8, 6))))
    with torch.no_grad():
        assert torch.equal(codes, o.get_codes(module(x), reader))


def test_copies_and_state_have_everything():
    spec = QuantSpec(EIGHT, ScaleInteger(8, granularity="channel"), EIGHT)
    integer = IntegerLinear.from_quantized(linear(spec), [o.read(EIGHT)], o.SMALL)
    assert {x.dtype for x in integer.state_dict().values()} == {torch.int64}
    assert integer.out.step.shape == (3,)
    assert torch.equal(integer.float().out.step, integer.out.step)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (QuantSpec(EIGHT, Float(), EIGHT), "QuantLinear.weight: float has no integer form"),
        (QuantSpec(EIGHT, EIGHT, Float()), "QuantLinear.bias: float has no integer form"),
        (QuantSpec(EIGHT, Integer(8, "auto"), EIGHT), "is not fitted: calibrate first"),
        (QuantSpec(EIGHT, Binary(stochastic=True), EIGHT), "no integer form"),
        (QuantSpec(EIGHT, ScaleInteger(8, granularity="group", group_size=2), EIGHT), "differ"),
        (QuantSpec(Integer(32, 30), Integer(32, 30), EIGHT), "bits, more than 62"),
    ],
    ids=["float weight", "float bias", "waits", "random", "groups", "wide"],
)
def test_what_has_no_integer_form_is_refused(spec, told):
    with pytest.raises(ConfigError, match=told):
        IntegerLinear.from_quantized(linear(spec), [o.read(spec.data_in)], o.SMALL)


def test_sums_beyond_float64_are_exact_in_a_linear_layer_and_refused_in_a_convolution():
    spec = QuantSpec(Integer(30, 28), Integer(26, 24), Integer(30, 28))
    module = linear(spec)
    integer = IntegerLinear.from_quantized(module, [o.read(spec.data_in)], o.SMALL)
    codes = o.get_codes(o.randn(3, 5).double(), spec.data_in)
    weight, bias = integer.weight.tolist(), integer.bias.tolist()
    for row, sums in zip(codes.tolist(), integer(codes).tolist(), strict=True):
        for w, b, found in zip(weight, bias, sums, strict=True):
            assert found == (sum(map(int.__mul__, row, w)) << integer.shift) + b
    convolution = layer(QuantConv1d, spec, in_channels=4, out_channels=2, kernel_size=3)
    with pytest.raises(ConfigError, match="not exact in float64"):
        IntegerConv1d.from_quantized(convolution, [o.read(spec.data_in)], o.SMALL)


def test_other_padding_is_refused():
    spec = QuantSpec.uniform(EIGHT)
    module = layer(
        QuantConv2d,
        spec,
        in_channels=2,
        out_channels=2,
        kernel_size=3,
        padding=1,
        padding_mode="reflect",
    )
    with pytest.raises(ConfigError, match="expected zero padding, got 'reflect'"):
        IntegerConv2d.from_quantized(module, [o.read(EIGHT)], o.SMALL)
