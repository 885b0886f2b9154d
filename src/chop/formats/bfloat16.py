"""Conversion between bfloat16 numbers and their bits."""

from __future__ import annotations

import torch
from torch import Tensor

BITS = 16


def to_bits(values: Tensor) -> Tensor:
    """Returns the bits of bfloat16 numbers as int64 from 0 to 2^16 - 1."""
    return values.bfloat16().view(torch.int16).long() & 0xFFFF


def from_bits(codes: Tensor) -> Tensor:
    """Returns the bfloat16 numbers, as float64, in the low 16 bits of int64 codes."""
    low = codes & 0xFFFF
    return (low - (low >> 15 << 16)).short().view(torch.bfloat16).double()
