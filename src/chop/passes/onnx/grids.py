"""Formats as ONNX has them: integers of at most 8 bits times a scale."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.formats import Integer, NumberFormat, ScaleInteger

MAX_WIDTH = 8
CHOICE = (
    "integer (width up to 8, not floored, calibrated) or scale_integer (width up to 8; granularity "
    "tensor, or channel for weights)"
)
"""What can be written, for messages."""


@dataclass(frozen=True)
class Grid:
    """Values s k for integers `low` <= k <= `high`.

    Attributes:
        low: the smallest k.
        high: the largest.
        scale: s, float32 () or, one for each index of the first axis, (n,); None if it follows
            the data: the largest magnitude over `high`.
    """

    low: int
    high: int
    scale: Tensor | None

    @property
    def dtype(self) -> torch.dtype:
        """Of the stored k."""
        return torch.int8 if self.low < 0 else torch.uint8


def grid_of(number_format: NumberFormat, parameter: Tensor | None = None) -> Grid | None:
    """The grid of a format; None if ONNX cannot express it in 8 bits.

    Args:
        number_format: the format.
        parameter: the tensor that is stored in it, if it is one; None for activations.
    """
    if isinstance(number_format, Integer):
        width, fraction = number_format.width, number_format.frac_width
        if number_format.floor or not isinstance(width, int) or not isinstance(fraction, int):
            return None
        scale = torch.tensor(2.0**-fraction)
        return Grid(*number_format.code_range, scale) if width <= MAX_WIDTH else None
    if isinstance(number_format, ScaleInteger) and number_format.width <= MAX_WIDTH:
        return _scaled(number_format, parameter)
    return None


def _scaled(number_format: ScaleInteger, parameter: Tensor | None) -> Grid | None:
    high = number_format.largest_step
    low = -high if number_format.is_signed else 0
    is_whole = number_format.granularity == "tensor"
    if parameter is not None:
        by_channel = number_format.granularity == "channel"
        if not (is_whole or by_channel):
            return None
        groups = number_format.groups.split(parameter.detach())
        scale = number_format.scaling.measure(groups.double()).values.float().reshape(-1)
        return Grid(low, high, scale if by_channel else scale[0])
    if number_format.scales is not None:
        is_one = len(number_format.scales) == 1
        return Grid(low, high, torch.tensor(number_format.scales[0])) if is_one else None
    return Grid(low, high, None) if is_whole and number_format.quantile == 1 else None
