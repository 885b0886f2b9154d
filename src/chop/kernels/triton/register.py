"""The kernels as chop calls them: on CUDA devices, where Triton is installed."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

from torch import Tensor

from chop.formats import Encoded, NumberFormat
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


def decode(encoded: Encoded, number_format: NumberFormat) -> Tensor:
    """`number_format.decode(encoded)`, by a kernel if one knows the codes."""
    rank, dtype = len(encoded.shape), encoded.dtype
    if not (is_installed() and decodes(number_format, rank, dtype)):
        return number_format.decode(encoded).contiguous()
    from chop.kernels.triton.dequantize import dequantize

    return dequantize(encoded, number_format)


CUDA_FAKE_QUANTIZE = register(Kernel("Triton fake-quantise", "cuda", run))
