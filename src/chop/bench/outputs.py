"""Comparison of the outputs of variants."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from chop.base.nested import tree_tensors
from chop.errors import ConfigError


def list_tensors(output: Any) -> Iterator[Tensor]:
    """Returns all tensors of an output in order, from nested sequences and mappings too."""
    return tree_tensors(output, fields=False)


def copied(output: Any) -> list[Tensor]:
    """Returns copies of the tensors of an output, which later calls do not overwrite."""
    return [x.detach().clone() for x in list_tensors(output)]


def largest_difference(ours: list[Tensor], expected: list[Tensor], name: str) -> float | None:
    """Returns the largest |ours - expected| over all elements, or None without elements.

    Equal infinities, and NaN and NaN, count as equal. NaN and a number differ by infinity.

    Raises:
        ConfigError: if the number or the shapes of the tensors differ.
    """
    shapes = [[tuple(x.shape) for x in tensors] for tensors in (ours, expected)]
    if shapes[0] != shapes[1]:
        raise ConfigError(
            f"variant '{name}' returns tensors of shapes {shapes[0]}, the baseline {shapes[1]}: "
            "expected the same; outputs=False compares only times."
        )
    pairs = zip(ours, expected, strict=True)
    return max((_difference(x, y) for x, y in pairs if x.numel()), default=None)


def _difference(x: Tensor, y: Tensor) -> float:
    wide = torch.complex128 if x.is_complex() or y.is_complex() else torch.float64
    place = y.device if y.device.type == "cuda" else torch.device("cpu")
    x, y = x.to(place, wide), y.to(place, wide)
    same = (x == y) | (x.isnan() & y.isnan())
    off = (x - y).abs().masked_fill(same, 0).max().item()
    return math.inf if math.isnan(off) else off
