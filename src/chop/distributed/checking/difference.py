"""Difference between values of a sharded model and a single process, with its tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chop.base.nested import tree_pairs, tree_tensors
from chop.distributed.layouts import Groups, get_local, get_piece, layout_text

ROUNDINGS = 4
"""Rounding steps of a dtype by which a reordered sum may differ."""
NEVER = 1e30
"""Magnitude above which values are masks, like the extremes of coarser dtypes."""
FLIPS, FLIP_SHARE = 4, 0.02
"""Number and share of elements that a quantized node may round to another value."""


@dataclass(frozen=True)
class Allowed:
    """Tolerance of a value.

    Attributes:
        relative: relative to the largest magnitude of the value.
        absolute: additional, for the rounding error of its inputs.
        flips: allows some elements any value, because they are rounded to a format.
    """

    relative: float
    absolute: float = 0.0
    flips: bool = False


@dataclass(frozen=True)
class Difference:
    """Difference of a value from the reference.

    Attributes:
        relative: relative to the largest magnitude of the reference, without flips.
        flips: elements outside the tolerance that count as rounded differently.
        wrong: description of the fault; "" if there is none.
    """

    relative: float = 0.0
    flips: int = 0
    wrong: str = ""

    def joined(self, other: Difference) -> Difference:
        """Returns the larger of both, with the first fault."""
        relative, flips = max(self.relative, other.relative), max(self.flips, other.flips)
        return Difference(relative, flips, self.wrong or other.wrong)


def difference(actual: Any, expected: Any, allowed: Allowed, groups: Groups) -> Difference:
    """Compares a value, a tensor or a structure of tensors, with the reference; ignores numbers.

    Args:
        actual: value of the sharded model: DTensors, or plain tensors, whole or this process's
            chunk.
        expected: the reference: plain tensors.
        allowed: tolerance of each tensor.
        groups: see `chunk_groups`.
    """
    worst = Difference()
    for whole, piece in tree_pairs(expected, actual):
        if isinstance(whole, Tensor):
            worst = worst.joined(_compare_tensor(piece, whole, allowed, groups))
    return worst


def list_tensors(value: Any) -> list[Tensor]:
    """Returns the tensors in a value."""
    return [*tree_tensors(value)]


def rounding_error(tensors: Iterable[Tensor]) -> float:
    """Returns the relative rounding error of the coarsest dtype among tensors."""
    floats = [x.dtype for x in tensors if x.is_floating_point() or x.is_complex()]
    return ROUNDINGS * max((torch.finfo(dtype).eps for dtype in floats), default=0.0)


def largest_magnitude(x: Tensor) -> float:
    """Returns the largest magnitude, without values that stand for "never", such as in masks."""
    is_exact = not (x.is_floating_point() or x.is_complex())
    # Masks use infinity or the extremes of the dtype for "never", which would hide differences.
    limit = math.inf if is_exact else min(NEVER, torch.finfo(x.dtype).max / 2)
    sizes = (x.double() if is_exact else x.detach()).abs()
    return float(sizes.masked_fill(~(sizes < limit), 0.0).max()) if x.numel() else 0.0


def _compare_tensor(actual: Any, whole: Tensor, allowed: Allowed, groups: Groups) -> Difference:
    if not isinstance(actual, Tensor):
        return Difference(math.inf, 0, f"it is {type(actual).__name__}, not a tensor")
    piece = get_piece(whole, actual, groups)
    if piece is None or actual.dtype != whole.dtype:
        got = f"{tuple(actual.shape)} {actual.dtype} in layout ({layout_text(actual)})"
        wanted = f"{tuple(whole.shape)} {whole.dtype}, whole or this process's chunk"
        return Difference(math.inf, 0, f"it is {got}, expected {wanted}")
    local = get_local(actual)
    where = f"layout ({piece.layout}), {tuple(local.shape)} of {tuple(whole.shape)} here"
    if local.shape != piece.local.shape:
        wanted = f"expected {tuple(piece.local.shape)}"
        return Difference(math.inf, 0, f"by its shape, {where}, {wanted}")
    return _measure(local, piece.local, largest_magnitude(whole), allowed, where)


def _measure(
    actual: Tensor, expected: Tensor, magnitude: float, allowed: Allowed, where: str
) -> Difference:
    if torch.equal(actual, expected):
        return Difference()
    is_exact = not (expected.is_floating_point() or expected.is_complex())
    wide = torch.complex128 if expected.is_complex() else torch.float64
    a, b = actual.to(wide), expected.to(wide)
    # Equal infinities have the difference NaN.
    same = (a == b) | (a.isnan() & b.isnan())
    gaps = (a - b).abs().masked_fill(same, 0.0).nan_to_num(nan=math.inf)
    limit = 0.0 if is_exact else allowed.relative * magnitude + allowed.absolute
    beyond = (gaps > limit) | gaps.isinf()
    count = int(beyond.sum())
    # A sum at a rounding boundary may round to another value after reordering. A wrong layout
    # changes far more elements.
    if allowed.flips and count <= FLIPS + FLIP_SHARE * gaps.numel() and not gaps.isinf().any():
        return Difference(_ratio(float(gaps.masked_fill(beyond, 0.0).max()), magnitude), count)
    largest = float(gaps.max())
    text = f"by {largest:.3g} where the largest magnitude is {magnitude:.3g}, {where}"
    return Difference(_ratio(largest, magnitude), 0, text if count else "")


def _ratio(part: float, whole: float) -> float:
    if part == 0:
        return 0.0
    return part / whole if whole > 0 else math.inf
