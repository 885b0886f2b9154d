"""Static scales: conversion of dynamic formats, whose scales follow the data, to static ones."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from chop.formats import reference
from chop.formats.base import NumberFormat
from chop.formats.groups import WHOLE_TENSOR
from chop.formats.lsq import LearnableFormat
from chop.formats.nvfp4 import NVFP4


def is_dynamic(number_format: NumberFormat) -> bool:
    """Returns True if scales are measured on the values that are rounded.

    >>> from chop.formats import Integer, ScaleInteger
    >>> [is_dynamic(ScaleInteger(8)), is_dynamic(ScaleInteger(8, scales=(0.5,)))]
    [True, False]
    >>> is_dynamic(Integer(8, 4))
    False
    """
    layout = number_format.layout() if number_format.is_fitted else None
    return (
        layout is not None and layout.scaling is not None and layout.scaling.statistic is not None
    )


def static_format(number_format: NumberFormat, samples: Tensor) -> NumberFormat | None:
    """Returns a dynamic format with constant scales, measured on all `samples` as one tensor.

    Args:
        number_format: dynamic format.
        samples: any shape and floating dtype.
    Returns: None unless the format has float scales per tensor and supports static ones. Scales of
        blocks in `nvfp4` stay dynamic.

    >>> import torch
    >>> from chop.formats import ScaleInteger
    >>> static_format(ScaleInteger(8), torch.tensor([254.0, -3.0])).label
    'scale_integer(width=8, scales=(2.0,))'
    """
    layout = number_format.layout()
    if isinstance(number_format, NVFP4):
        scaling = number_format.scaling
        measured = scaling.scales(samples.double().nan_to_num(0, 0, 0).abs()).tensor_scale
        assert measured is not None
        is_static = number_format.tensor_scale is not None
        return None if is_static else replace(number_format, tensor_scale=measured.item())
    if layout is None or layout.groups != WHOLE_TENSOR:
        return None
    if layout.scaling is None or not isinstance(number_format, LearnableFormat):
        return None
    if layout.levels is not None:
        return number_format.with_scales(reference.scales_of_levels(layout, samples))
    groups = layout.groups.split(samples).double()
    scales = layout.scaling.measure(groups, layout.counted(groups))
    return number_format.with_scales(scales.values.reshape(-1))
