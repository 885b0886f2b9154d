"""FP8 against the casts of torch and of ml_dtypes, code by code."""

import ml_dtypes
import numpy as np
import pytest
import torch

from chop.errors import ConfigError
from chop.formats import FP8, NVFP4, format_string, parse_format_string
from chop.formats.static import is_dynamic, static_format
from tests.subcases import subcases

CASTS = {
    4: (torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn, 448.0),
    5: (torch.float8_e5m2, ml_dtypes.float8_e5m2, 57344.0),
}
ALL_BFLOAT16 = torch.arange(2**16).to(torch.uint16).view(torch.bfloat16).float()
NUMBERS = ALL_BFLOAT16[~ALL_BFLOAT16.isnan()]


@subcases("exponent_width", CASTS)
def test_codes_are_those_of_casts(exponent_width):
    of_torch, of_ml_dtypes, largest = CASTS[exponent_width]
    fmt = FP8(exponent_width, scales=(1.0,))
    assert fmt.element.largest == largest
    assert fmt.bits() == 8
    codes, clipped = fmt.encode(NUMBERS).codes, NUMBERS.clamp(-largest, largest)
    assert torch.equal(codes, clipped.to(of_torch).view(torch.uint8))
    assert np.array_equal(codes.numpy(), clipped.numpy().astype(of_ml_dtypes).view(np.uint8))


@subcases("exponent_width", CASTS)
def test_all_codes_have_the_values_of_torch(exponent_width):
    fmt, (of_torch, _, largest) = FP8(exponent_width), CASTS[exponent_width]
    codes = torch.arange(256)
    theirs = codes.to(torch.uint8).view(of_torch)
    assert torch.equal(fmt.element.values(codes).nan_to_num(7.5), theirs.double().nan_to_num(7.5))
    assert theirs.float().nan_to_num(0, 0, 0).max() == largest


def expected(x, dims, exponent_width):
    """The quantized tensor and its scales in float32, by quotients in float64."""
    _, of_ml_dtypes, largest = CASTS[exponent_width]
    scale = (x.abs().amax(dims, keepdim=True).double() / largest).float()
    # Quotients of float32 numbers are rounded once: as float32 they would be twice.
    quotients = x.double() / scale.double()
    whole = np.asarray(quotients).astype(of_ml_dtypes).astype(np.float64)
    return (torch.from_numpy(whole) * scale.double()).float(), scale


@subcases("exponent_width", CASTS)
@subcases("granularity, dims", {"tensor": (0, 1), "channel": 1, "row": 1}.items())
def test_scales_put_the_largest_magnitude_on_the_largest_number(granularity, dims, exponent_width):
    x = torch.randn(24, 50, generator=torch.Generator().manual_seed(0)) * 3
    fmt = FP8(exponent_width, granularity)
    values, scale = expected(x, dims, exponent_width)
    assert torch.equal(fmt.round(x), values)
    assert torch.equal(fmt.encode(x).scales, scale.reshape(-1))


def test_groups_and_blocks_are_cut_at_the_edges():
    x = torch.randn(20, 40, generator=torch.Generator().manual_seed(0))
    group, block = FP8(granularity="group", group_size=16), FP8(granularity="block", group_size=16)
    assert group.encode(x).scales.shape == (20 * 3,)
    amax = [p.abs().amax() for rows in x.split(16) for p in rows.split(16, 1)]
    assert torch.equal(block.encode(x).scales, (torch.stack(amax).double() / 448).float())
    assert torch.equal(block.round(x)[16:, 32:], FP8().round(x[16:, 32:]))


def test_special_values():
    fmt = FP8(granularity="row")
    x = torch.tensor([[torch.nan, 4.0, -0.0], [torch.inf, -2.0, 1.0], [0.0, 0.0, -0.0]])
    y = fmt.round(x)
    assert y[0].isnan().tolist() == [True, False, False]
    assert y[0, 1] == 4
    assert y[0, 2].signbit()
    assert y[1].tolist() == [2.0, -2.0, 1.0]
    assert y[2].tolist() == [0.0, 0.0, 0.0]
    assert fmt.decode(fmt.encode(x))[0].isnan().tolist() == [True, False, False]


def test_texts_and_fields():
    text = "fp8:exponent_width=5:granularity=row"
    assert parse_format_string(text) == FP8(5, "row")
    assert format_string(FP8(5, "row")) == text
    assert parse_format_string("fp8") == FP8()
    with pytest.raises(ConfigError, match=r"fp8\.exponent_width: got 3, expected 4 to 5 bits"):
        FP8(3)
    with pytest.raises(ConfigError, match=r"fp8\.scales: expected .*finite numbers"):
        FP8(scales=(torch.inf,))


def test_static_scales_of_calibration():
    assert is_dynamic(FP8())
    static = static_format(FP8(), torch.tensor([896.0, -3.0]))
    assert static == FP8(scales=(2.0,))
    assert not is_dynamic(static)
    assert static_format(FP8(granularity="row"), torch.ones(2, 2)) is None
    static = static_format(NVFP4(), torch.tensor([[5376.0, -3.0, torch.inf]]))
    assert static == NVFP4(tensor_scale=2.0)
    assert static_format(static, torch.ones(2, 2)) is None
