"""Formats that follow the training data: an observer for derived fractions and widths."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chop.formats import Quantizer
from chop.private.torch_api import detect_fake_mode, is_transformed


@dataclass(frozen=True)
class RunningMaximum:
    """Running maximum of an operand whose format was not calibrated.

    Attributes:
        waiting: the format with a field to derive.
        largest: the largest magnitude so far.
        fitted: the format fitted to the tensor that had it.
    """

    waiting: Quantizer
    largest: float
    fitted: Quantizer

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> dict[str, RunningMaximum]:
        """By operand; checkpoints have tuples of the fields."""
        return {name: x if isinstance(x, cls) else cls(*x) for name, x in stored.items()}


def observe_maximum(
    before: RunningMaximum | None, waiting: Quantizer, x: Tensor
) -> RunningMaximum | None:
    """Running maximum after a training tensor: the format is fitted to the largest one so far.

    Finding the largest magnitude is one pass over `x`; only a new record is fitted to, which takes
    some fifty times as long. Values that are not finite do not count.

    Args:
        before: what was known; of another format it counts as nothing.
        waiting: the format with a field to derive.
        x: any shape, floating. What has no values to look at (compilers, fake tensors, transforms),
            and a first tensor that is all zero, leave things as they were.
    """
    if before is not None and before.waiting != waiting:
        before = None
    if _is_opaque(x):
        return before
    largest = _largest(x.detach())
    if largest <= (0.0 if before is None else before.largest):
        return before
    return RunningMaximum(waiting, largest, waiting.fitted(x.detach()))


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
