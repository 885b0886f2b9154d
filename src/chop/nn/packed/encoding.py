"""Encoding of large tensors in parts of rows."""

from __future__ import annotations

import torch
from torch import Tensor

from chop.formats import Encoded, NumberFormat

PART = 2**20
"""Number of elements that are encoded, or compared with their codes, at a time."""


def parts_of_rows(number_format: NumberFormat, x: Tensor, part: int | None = None) -> int:
    """Returns the number of rows to process at a time; all rows of small or inseparable tensors.

    Args:
        number_format: determines whether rows are rounded separately.
        x: any shape.
        part: approximate number of elements at a time. Default: `PART`.
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
    """Returns the codes of a large tensor without temporary tensors of its size."""
    count = parts_of_rows(number_format, x)
    if x.ndim == 0 or count >= len(x):
        return number_format.encode(x)
    parts = [number_format.encode(rows) for rows in x.split(count)]
    scales = [part.scales for part in parts if part.scales is not None]
    codes = torch.cat([part.codes for part in parts])
    return Encoded(codes, x.shape, x.dtype, torch.cat(scales) if scales else None)
