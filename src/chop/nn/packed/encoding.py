"""Encoding of large tensors, some rows at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from chop.formats import Encoded, NumberFormat

PART = 2**20
"""Elements of a parameter that are encoded, or compared with their codes, at a time."""


def parts_of_rows(number_format: NumberFormat, x: Tensor, part: int | None = None) -> int:
    """How many rows of a tensor to treat at a time: all of one that is small, or not separable.

    Args:
        number_format: decides whether rows are rounded by themselves.
        x: any shape.
        part: elements at a time, about; None: `PART`.
    """
    whole = max(1, len(x)) if x.ndim else 1
    part = part or PART
    is_separable = number_format.is_fitted and number_format.is_row_separable(x.shape)
    if x.numel() <= part or not is_separable:
        return whole
    if number_format.encode(x[:1]).tensor_scale is not None:  # a factor that all rows decide
        return whole
    return max(1, part * len(x) // x.numel())


def encode_in_parts(number_format: NumberFormat, x: Tensor) -> Encoded:
    """The codes of a large tensor without temporary ones of its size, which encoding makes."""
    count = parts_of_rows(number_format, x)
    if x.ndim == 0 or count >= len(x):
        return number_format.encode(x)
    parts = [number_format.encode(rows) for rows in x.split(count)]
    scales = [part.scales for part in parts if part.scales is not None]
    codes = torch.cat([part.codes for part in parts])
    return Encoded(codes, x.shape, x.dtype, torch.cat(scales) if scales else None)
