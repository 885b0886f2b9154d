"""Minifloats and powers of two against other people's implementations and by hand."""

import ml_dtypes
import numpy as np
import pytest
import torch

from chop.errors import ConfigError
from chop.formats import Log, MinifloatDenorm, MinifloatIEEE
from chop.formats.elements.minifloat import Denormal, Minifloat
from tests.subcases import subcases

ALL_BFLOAT16 = torch.arange(2**16).to(torch.uint16).view(torch.bfloat16).float()
NAN, INF = float("nan"), float("inf")

PEERS = {
    "float8_e4m3fn": MinifloatIEEE(8, 4),
    "float8_e5m2": MinifloatIEEE(8, 5),
    "float8_e4m3": MinifloatIEEE(8, 4, variant="ieee"),
    "float8_e3m4": MinifloatIEEE(8, 3, variant="ieee"),
    "float6_e3m2fn": MinifloatIEEE(6, 3),
    "float6_e2m3fn": MinifloatIEEE(6, 2),
    "float4_e2m1fn": MinifloatIEEE(4, 2),
    "bfloat16": MinifloatIEEE(16, 8),
}


def random_floats():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100_000, generator=generator)
    return x * torch.exp2(torch.randint(-20, 20, x.shape, generator=generator).float())


def differences(ours, theirs):
    ours, theirs = ours.numpy(), np.asarray(theirs, dtype=np.float32)
    equal = (ours == theirs) & (np.signbit(ours) == np.signbit(theirs))
    return int((~(equal | (np.isnan(ours) & np.isnan(theirs)))).sum())


@subcases("name", PEERS)
@subcases("x", [ALL_BFLOAT16, random_floats()], ids=["bfloat16", "random"])
def test_equals_ml_dtypes_on_clipped_input(name, x):
    fmt, dtype = PEERS[name], np.dtype(getattr(ml_dtypes, name))
    largest = float(ml_dtypes.finfo(dtype).max)
    assert fmt.element.largest == largest
    x = x[~x.isnan()]
    clipped = np.clip(x.numpy(), -largest, largest)
    assert differences(fmt.round(x), clipped.astype(dtype).astype(np.float32)) == 0


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float16])
def test_equals_the_cast_of_torch(dtype):
    fmt = {
        torch.float8_e4m3fn: MinifloatIEEE(8, 4),
        torch.float8_e5m2: MinifloatIEEE(8, 5),
        torch.float16: MinifloatIEEE(16, 5),
    }[dtype]
    largest = torch.finfo(dtype).max
    for x in (ALL_BFLOAT16, random_floats()):
        assert differences(fmt.round(x), x.clamp(-largest, largest).to(dtype).float()) == 0
    if dtype.itemsize == 1:
        x = random_floats().clamp(-largest, largest)
        assert torch.equal(fmt.encode(x).codes, x.to(dtype).view(torch.uint8))


def test_carry_subnormals_and_saturation():
    e4m3 = MinifloatIEEE(8, 4)
    x = torch.tensor([1.97, 1e-9, 0.001, 465.0, INF, -INF, -0.0])
    assert e4m3.round(x).tolist() == [2.0, 0.0, 2**-9 * 1.0, 448.0, 448.0, -448.0, 0.0]
    assert torch.signbit(e4m3.round(x))[-1]
    assert e4m3.saturates(x).tolist() == [False, False, False, True, True, True, False]
    e2m1 = MinifloatIEEE(4, 2)
    assert e2m1.round(torch.tensor([0.5, 0.25, 0.75, 5.0, 100.0])).tolist() == [0.5, 0, 1, 4, 6]


def test_nan_is_stored_where_there_is_a_code_for_it():
    nan = torch.tensor([NAN])
    for fmt in (MinifloatIEEE(8, 4), MinifloatIEEE(8, 5)):
        assert fmt.decode(fmt.encode(nan)).isnan().all()
    assert MinifloatIEEE(8, 4).encode(nan).codes.tolist() == [0x7F]
    assert MinifloatIEEE(8, 5).encode(nan).codes.tolist() == [0x7E]
    finite = MinifloatIEEE(6, 3)
    assert finite.round(nan).isnan().all()
    assert finite.decode(finite.encode(nan)).tolist() == [0.0]


def test_the_bias_moves_the_range():
    assert MinifloatIEEE(8, 4, 7) == MinifloatIEEE(8, 4, exponent_bias=7)
    x = random_floats()
    shifted = MinifloatIEEE(8, 4, 10).round(x / 8)
    assert torch.equal(shifted * 8, MinifloatIEEE(8, 4, 7).round(x))


@pytest.mark.parametrize("width, exponent_width, bias", [(8, 4, 7), (6, 2, 3), (5, 3, 0)])
def test_numbers_without_a_hidden_bit_are_the_nearest_of_the_definition(
    width, exponent_width, bias
):
    mantissa = width - exponent_width - 1
    book = {
        sign * 2.0**e * k / 2**mantissa
        for sign in (-1, 1)
        for e in range(-bias, 2**exponent_width - bias)
        for k in range(2**mantissa)
    }
    book = torch.tensor(sorted(book), dtype=torch.float64)
    fmt = MinifloatDenorm(width, exponent_width, bias)
    x = torch.cat([book, (book[1:] + book[:-1]) / 2, torch.linspace(-2, 2, 20001).double()])
    y = fmt.round(x)
    assert torch.isin(y, book).all()
    assert torch.equal((x - y).abs(), (x[:, None] - book).abs().min(1).values)
    assert MinifloatDenorm(8, 4).round(torch.tensor([1.0, 0.999])).tolist() == [1.0, 1.0]


def test_logarithms_round_in_the_domain_that_is_asked_for():
    x = torch.tensor([1.4, 1.42, 1.49, 1.51, -3.0, 0.0, 1e-9, 1e9])
    assert Log(4, 3).round(x).tolist() == [1, 2, 2, 2, -4, 0.125, 0.125, 16]
    linear = Log(4, 3, nearest="linear")
    assert linear.round(x).tolist() == [1, 1, 1, 2, -4, 0.125, 0.125, 16]
    zero = Log(4, 3, zero_code=True).round(x)
    assert zero.tolist() == [1, 2, 2, 2, -4, 0, 0, 16]
    rounded = Log(8, 63).round(random_floats())
    expected = torch.exp2(torch.log2(random_floats().double().abs()).round()).float()
    assert torch.equal(rounded.abs(), expected)
    assert Log(8) == Log(8, None) and Log(8).element.bias == 63


@subcases(
    "make, message",
    [
        (lambda: MinifloatIEEE(8, 7), "exponent_width: got 7, expected 1 to 6 bits"),
        (lambda: MinifloatIEEE(8, 3, 300), "exponent_bias: got 300, expected -256 to 256.$"),
        (lambda: MinifloatIEEE(40, 4), "width: got 40"),
        (lambda: MinifloatIEEE(8, 4, 1000), "exponent_bias: got 1000"),
        (
            lambda: MinifloatIEEE(8, 4, variant="fnn"),
            "variant: expected 'ieee' or 'fn' or 'finite'",
        ),
        (lambda: MinifloatDenorm(8, 0), "exponent_width: got 0"),
        (lambda: MinifloatDenorm(8.0, 4), "width: expected int, got 8.0"),
        (lambda: Log(1), "log.width: got 1"),
        (lambda: Log(8, nearest="lin"), "linear"),
    ],
)
def test_what_is_out_of_range_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("element", [Minifloat(4, 3, 7, "fn"), Denormal(4, 3, 7)], ids=str)
def test_steps_beyond_the_ends_are_those_before_them(element):
    every = element.values(torch.arange(2**element.width))
    *_, below, largest = sorted({x for x in every.tolist() if x == x})
    x = torch.tensor([1.0, 5.0, -5.0, -1e9], dtype=torch.float64) * largest
    assert element.step(x).tolist() == [largest - below] * 4
