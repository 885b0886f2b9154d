"""Formats that follow the training data: an observer for derived fractions and widths."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch._guards import detect_fake_mode

from chop.formats import NumberFormat
from chop.formats.transforms import is_transformed

Running = tuple[NumberFormat, float, NumberFormat]
"""A format that waits to be fitted, the largest magnitude so far, and the format fitted there."""


def observed(before: Running | None, waiting: NumberFormat, x: Tensor) -> Running | None:
    """What is known after a training tensor: the format is fitted to the largest one so far.

    Finding the largest magnitude is one pass over `x`; only a new record is fitted to, which takes
    some fifty times as long. Values that are not finite do not count.

    Args:
        before: what was known; of another format it counts as nothing.
        waiting: the format with a field to derive.
        x: any shape, floating. What has no values to look at (compilers, fake tensors, transforms),
            and a first tensor that is all zero, leave things as they were.
    """
    if before is not None and before[0] != waiting:
        before = None
    if _is_opaque(x):
        return before
    largest = _largest(x.detach())
    if largest <= (0.0 if before is None else before[1]):
        return before
    return waiting, largest, waiting.fitted(x.detach())


def _is_opaque(x: Tensor) -> bool:
    if torch.compiler.is_compiling() or is_transformed() or x.is_meta or not x.numel():
        return True
    return detect_fake_mode(x) is not None


def _largest(x: Tensor) -> float:
    low, high = (end.item() for end in x.aminmax())
    if not math.isfinite(high - low):
        finite = x[x.isfinite()]
        return finite.abs().max().item() if finite.numel() else 0.0
    return max(-low, high)
