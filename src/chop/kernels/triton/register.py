"""The kernels as chop calls them: on CUDA devices, where Triton is installed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from chop.formats import Encoded, NumberFormat, from_key
from chop.kernels.base import Kernel, register
from chop.kernels.triton.rules import decodes, takes


@cache
def is_installed() -> bool:
    """True where Triton can be imported. It is not imported to find out."""
    return find_spec("triton") is not None


def run(x: Tensor, number_format: NumberFormat, out: Tensor) -> bool:
    """Rounds `x` into `out`; False where a format, dtype or Triton is not to be had."""
    if not (is_installed() and takes(number_format, x.dtype)):
        return False
    from chop.kernels.triton.fake_quantize import fake_quantize

    fake_quantize(x, number_format, out)
    return True


def decode(
    codes: Tensor,
    scales: Tensor | None,
    tensor_scale: Tensor | None,
    shape: Sequence[int],
    key: str,
    dtype: torch.dtype,
) -> Tensor | None:
    """The tensor that codes stand for; None where no kernel knows them."""
    number_format = from_key(key)
    if not (is_installed() and decodes(number_format, len(shape), dtype)):
        return None
    from chop.kernels.triton.dequantize import dequantize

    return dequantize(Encoded(codes, torch.Size(shape), dtype, scales, tensor_scale), number_format)


def linear(
    x: Tensor,
    x_key: str,
    codes: Tensor,
    scales: Tensor | None,
    tensor_scale: Tensor | None,
    shape: Sequence[int],
    key: str,
    bias: Tensor | None,
) -> Tensor | None:
    """`F.linear` of a packed weight, decoded on the way; None where no kernel knows its codes."""
    number_format = from_key(key)
    if not (is_installed() and x.numel() and decodes(number_format, 2, x.dtype)):
        return None
    from chop.kernels.triton import linear as fused

    weight = Encoded(codes, torch.Size(shape), x.dtype, scales, tensor_scale)
    return fused.linear(from_key(x_key)(x), weight, number_format, bias)


CUDA_FAKE_QUANTIZE = register(Kernel("Triton fake-quantise", "cuda", run))
