"""Affine grids: formats that ONNX expresses as integers of at most 8 bits times a scale."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.formats import NumberFormat
from chop.formats.groups import WHOLE_TENSOR
from chop.formats.layout import Layout
from chop.kernels.integers import get_integers, one_scale

CHOICE = (
    "integer (width up to 8, not floored, calibrated) or scale_integer (width up to 8; granularity "
    "tensor, or channel for weights); weight matrices may be any integers of up to 8 bits"
)
"""Supported formats, for messages."""


@dataclass(frozen=True)
class AffineGrid:
    """Values s k for integers `low` <= k <= `high`.

    Attributes:
        low: smallest k.
        high: largest k.
        scale: s, float32 () or, one for each index of the first axis, (n,). None for a dynamic
            scale, the largest magnitude over `high`.
    """

    low: int
    high: int
    scale: Tensor | None

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the stored k."""
        return torch.int8 if self.low < 0 else torch.uint8


def get_grid(number_format: NumberFormat, parameter: Tensor | None = None) -> AffineGrid | None:
    """Returns the affine grid of a format; None if ONNX cannot express it in 8 bits.

    Args:
        number_format: number format.
        parameter: tensor stored in the format; None for activations.
    """
    layout = number_format.layout() if number_format.is_fitted else None
    integers = get_integers(layout)
    if layout is None or integers is None:
        return None
    low, high, step = integers
    one = one_scale(layout, integers)
    if one:
        return AffineGrid(low, high, torch.tensor(one))
    if parameter is not None:
        scale = get_scale(layout, parameter)
        return None if scale is None else AffineGrid(low, high, scale * step)
    return AffineGrid(low, high, None) if one == 0 and layout.groups == WHOLE_TENSOR else None


def get_scale(layout: Layout, parameter: Tensor) -> Tensor | None:
    """Returns the scale of a parameter or its channels, float32 () or (n,), or None."""
    lines = layout.groups.lines(parameter.shape)
    if lines is None or layout.scaling is None or lines.groups_per_row > 1:
        return None
    if lines.groups_per_row and lines.rows != parameter.size(0):
        return None
    groups = layout.groups.split(parameter.detach()).double()
    scale = layout.scaling.measure(groups, layout.counted(groups)).values.float().reshape(-1)
    if not (scale.isfinite() & (scale > 0)).all():
        return None
    return scale if lines.groups_per_row else scale[0]
