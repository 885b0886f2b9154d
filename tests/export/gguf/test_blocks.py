"""Blocks of GGUF: what ggml makes of them are the values of our formats, or within a told bound."""

import numpy as np
import pytest
import torch

from chop.export.coded import coded_weight
from chop.export.gguf.blocks import pack_blocks
from chop.formats import QuantSpec, parse_format_string
from chop.nn.packed import pack
from chop.nn.quantized import QuantLinear

gguf = pytest.importorskip("gguf", reason="GGUF files are written by gguf: pip install gguf")


def packed_linear(fmt, weight):
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data = weight.clone()
    return pack(QuantLinear.from_float(layer, QuantSpec(weight=parse_format_string(fmt))))


def blocks_and_values(fmt, weight):
    """Of a weight in a format: as GGUF has it, its values there, and those of the format."""
    layer = packed_linear(fmt, weight)
    blocks = pack_blocks(coded_weight(layer, zero_points=True))
    kind = gguf.GGMLQuantizationType[blocks.type_name]
    return blocks, gguf.quants.dequantize(blocks.data, kind), layer.weight.detach().numpy()


def grid(scale, last, low):
    """Groups of 32 that lie on a grid of every code, from a value on."""
    codes = torch.arange(6 * 64).view(6, 64) * 7 % 32 % (last + 1)
    return scale * codes.float() + low


@pytest.mark.parametrize(
    ("fmt", "kind"),
    [
        ("group_affine:width=4:group_size=32", "Q4_1"),
        ("group_affine:width=3:group_size=64", "Q4_1"),
        ("group_affine:width=5:group_size=32", "Q5_1"),
    ],
)
def test_zero_points_become_lowest_values_in_float16(fmt, kind):
    torch.manual_seed(0)
    blocks, found, expected = blocks_and_values(fmt, torch.randn(6, 128) * 0.05 + 0.02)
    moved = np.abs(found - expected).max()
    assert blocks.type_name == kind and 0 < moved <= blocks.moved * 1.001 + 1e-8
    assert blocks.moved <= 2.0**-11 * 0.25  # half a step of float16 below a quarter
    width = parse_format_string(fmt).width
    blocks, found, expected = blocks_and_values(fmt, grid(0.25, 2**width - 1, -0.75))
    assert blocks.moved == 0 and np.array_equal(found, expected)
    assert np.unique(found).size == 2**width


@pytest.mark.parametrize("fmt", ["nvfp4", "nvfp4:block_size=32"])
def test_nvfp4_has_its_tensors_scale_beside_it(fmt):
    torch.manual_seed(0)
    blocks, found, expected = blocks_and_values(fmt, torch.randn(6, 128) * 0.3)
    assert (blocks.type_name, blocks.moved) == ("NVFP4", 0.0)
    np.testing.assert_allclose(found * np.float32(blocks.scale), expected, rtol=2e-7, atol=0)


def test_blocks_of_zeros_and_large_lowest_values():
    weight = torch.zeros(2, 64)
    for fmt in ("group_affine:width=4:group_size=32", "nvfp4", "group_integer:width=5"):
        _, found, expected = blocks_and_values(fmt, weight)
        assert np.array_equal(found, expected) and not found.any()
    far = packed_linear("group_affine:width=4:group_size=32", torch.full((2, 64), -2e5))
    assert "float16" in pack_blocks(coded_weight(far, zero_points=True))
