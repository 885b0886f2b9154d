"""Registration of Triton kernels for CUDA devices."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from chop.formats import NumberFormat, from_key
from chop.kernels.base import Kernel, register
from chop.kernels.codes import Packed
from chop.kernels.triton.rules import decodes, takes


@cache
def is_installed() -> bool:
    """Returns True if Triton is installed, without importing it."""
    return find_spec("triton") is not None


def run(
    x: Tensor,
    number_format: NumberFormat,
    out: Tensor,
    mask: Tensor | None = None,
    scales: Tensor | None = None,
) -> bool:
    """Rounds `x` into `out`; returns False if the format, dtype or Triton is not available."""
    if mask is not None or scales is not None:
        return False
    if not (is_installed() and takes(number_format.fitted(x), x.dtype)):
        return False
    from chop.kernels.triton.fake_quantize import fake_quantize

    fake_quantize(x, number_format, out)
    return True


def decode(packed: Packed, dtype: torch.dtype) -> Tensor | None:
    """Returns the decoded tensor, or None if no kernel supports the codes."""
    number_format = from_key(packed.key)
    if not (is_installed() and decodes(number_format, len(packed.shape), dtype)):
        return None
    from chop.kernels.triton.dequantize import dequantize

    return dequantize(packed.encoded(dtype), number_format)


def linear(x: Tensor, x_key: str, packed: Packed, bias: Tensor | None) -> Tensor | None:
    """Returns `F.linear` of one row and a packed weight that is decoded on the fly.

    Returns None for unsupported codes, and for more rows, where decoding first is faster.
    """
    number_format = from_key(packed.key)
    is_one_row = x.numel() == packed.shape[1]
    if not (is_one_row and is_installed() and decodes(number_format, 2, x.dtype)):
        return None
    from chop.kernels.triton import linear as fused

    return fused.linear(from_key(x_key)(x), packed.encoded(x.dtype), number_format, bias)


CUDA_FAKE_QUANTIZE = register(Kernel("Triton fake-quantize", "cuda", run))
