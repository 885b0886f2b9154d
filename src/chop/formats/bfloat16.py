"""Numbers that are stored as the bits of a bfloat16."""

from __future__ import annotations

import torch
from torch import Tensor

BITS = 16


def to_bits(values: Tensor) -> Tensor:
    """The bits of bfloat16 numbers as int64 from 0 to 2^16 - 1."""
    return values.bfloat16().view(torch.int16).long() & 0xFFFF


def from_bits(codes: Tensor) -> Tensor:
    """The numbers, float64, that the low 16 bits of int64 codes are."""
    low = codes & 0xFFFF
    return (low - (low >> 15 << 16)).short().view(torch.bfloat16).double()
