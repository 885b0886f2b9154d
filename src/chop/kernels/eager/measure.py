"""Statistics of lines: the reference's values, found without copies of the tensor."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from chop.formats.elements import Trit
from chop.formats.layout import Layout
from chop.formats.scaling import KnownScale, is_poisoned
from chop.formats.statistic import Statistic, Threshold
from chop.kernels.eager.chunked import line_chunks
from chop.kernels.plan import UNIT_ROUNDOFF


def scales_of_lines(lines: Tensor, layout: Layout) -> Tensor:
    """float64, (lines, 1): the reference's scales of (lines, elements), each a group.

    Args:
        lines: floating.
        layout: with scales, and the threshold as a float32 number if it has one.
    """
    scaling, element = layout.scaling, layout.element
    assert scaling is not None
    if isinstance(scaling, KnownScale):
        return scaling.measure(lines).values
    statistic = scaling.statistic
    if statistic is None:
        return by_reference(lines, layout)
    poisoned = is_poisoned(lines) if scaling.has_nan else None
    if statistic.kind == "largest":
        return scaling.scales(_covered(lines, statistic).double(), poisoned).values
    above = element.threshold if isinstance(element, Trit) else None
    assert not isinstance(above, Threshold)
    low, high = (scaling.scales(x, poisoned).values for x in bounds_of_means(lines, above))
    # Sums depend on the order of their terms. Where the bounds of any order have one scale, that
    # is it; the few other lines are left to the reference.
    is_open = (low != high).squeeze(1)  # or NaN
    if is_open.any():
        low[is_open] = by_reference(lines[is_open], layout)
    return low


def by_reference(lines: Tensor, layout: Layout) -> Tensor:
    """float64, (lines, 1): scales in the reference's own order."""
    assert layout.scaling is not None
    return layout.scaling.measure(layout.element.measured(lines.double())).values


def _covered(lines: Tensor, statistic: Statistic) -> Tensor:
    """(lines, 1): the magnitude that each line's scale has to cover."""
    covers_all = statistic.is_signed and statistic.quantile == 1
    return largest_of(lines) if covers_all else statistic.of(lines)


def largest_of(lines: Tensor) -> Tensor:
    """float32, (lines, 1): the largest finite magnitudes of (lines, elements)."""
    largest = torch.maximum(lines.amax(-1, keepdim=True), -lines.amin(-1, keepdim=True))
    poisoned = ~largest.isfinite().squeeze(1)
    if poisoned.any():
        finite = lines[poisoned].abs().nan_to_num(nan=0.0, posinf=0.0)
        largest[poisoned] = finite.amax(-1, keepdim=True)
    return largest.abs().float()


def bounds_of_means(lines: Tensor, above: float | None = None) -> tuple[Tensor, Tensor]:
    """Two float64 bounds, (lines, 1), of the mean magnitude that any sum can give.

    NaN for lines with a NaN or an infinity.
    """
    sums = torch.zeros(lines.size(0), 1, dtype=torch.float64, device=lines.device)
    counts = torch.full_like(sums, lines.size(1)) if above is None else torch.zeros_like(sums)
    for (part, sum_, count), buffers in line_chunks(lines, sums, counts):
        v = buffers.get("magnitudes", torch.float32, part.shape).copy_(part).abs_()
        if above is not None:
            kept = buffers.get("kept", v.dtype, v.shape)
            count.add_(torch.gt(v, above, out=kept).sum(-1, keepdim=True))
            v.mul_(kept)
        exact = buffers.get("exact", torch.float64, part.shape).copy_(v)
        sum_.add_(exact.sum(-1, keepdim=True))
    return bounds(sums, counts, lines.size(1))


def bounds(sums: Tensor, counts: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Two bounds of the means that any order of summation can give.

    Both our sum and the reference's add partial sums, so that far fewer than 8 sqrt(n) additions
    follow one another.
    Source: Higham 2002, Accuracy and Stability of Numerical Algorithms, section 4.2: a sum of
    terms of one sign is off by less than a unit roundoff for each addition in a chain.

    Args:
        sums: float64, of numbers of one sign.
        counts: how many there are, float64.
        size: the most that there can be.
    """
    mean = sums / counts.clamp(min=1)
    # Twice, for our sum and the reference's; a few more for the quotients.
    slack = mean * (2 * 8 * math.sqrt(size) + 8) * UNIT_ROUNDOFF
    return mean - slack, mean + slack


def with_threshold(layout: Layout, x: Tensor) -> Layout:
    """The layout with the tensor's threshold, if it has one.

    The threshold is the largest float32 not above the reference's, which parts float32 alike.
    """
    element = layout.element
    if not isinstance(element, Trit):
        return layout
    number = _float_below(_threshold(x, element.threshold))
    return dataclasses.replace(layout, element=dataclasses.replace(element, threshold=number))


def _threshold(x: Tensor, threshold: Threshold | float) -> float:
    if isinstance(threshold, float):
        return threshold
    line = x.reshape(1, -1)
    if threshold.kind == "largest":
        return threshold.factor * largest_of(line).item()
    if threshold.kind == "mean":
        ends = [threshold.factor * mean.item() for mean in bounds_of_means(line)]
        if all(map(math.isfinite, ends)) and len(set(map(_float_below, ends))) == 1:
            return ends[0]
    return threshold.of(x)


def _float_below(number: float) -> float:
    nearest = torch.tensor(number, dtype=torch.float32, device="cpu")
    if nearest.double() > number:
        nearest = nearest.nextafter(torch.tensor(-torch.inf, device="cpu"))
    return nearest.item()
