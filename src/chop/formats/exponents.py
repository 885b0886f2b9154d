"""Exact binary exponents, by the bits of float64."""

from __future__ import annotations

import torch
from torch import Tensor

MANTISSA_BITS = 52
BIAS = 1023


def floor_log2(x: Tensor) -> Tensor:
    """Returns floor(log2 |x|) exactly.

    Args:
        x: float64; every finite nonzero float32 is a normal float64.
    Returns: int64; -1023 for zero and subnormal float64, 1024 for infinities and NaN.

    >>> floor_log2(torch.tensor([0.75, -8.0, 7.999]).double())
    tensor([-1,  3,  2])
    """
    return (x.contiguous().view(torch.int64) >> MANTISSA_BITS & 0x7FF) - BIAS


def exp2(exponent: Tensor) -> Tensor:
    """Returns 2^exponent exactly.

    Args:
        exponent: int64, -1022 to 1023.
    Returns: float64, same shape.

    >>> exp2(torch.tensor([-1, 0, 10]))
    tensor([5.0000e-01, 1.0000e+00, 1.0240e+03], dtype=torch.float64)
    """
    return (exponent + BIAS << MANTISSA_BITS).view(torch.float64)
