"""Statistics of lines: the reference's values, found without copies of the tensor."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from chop.formats import Binary, ScaleInteger, Ternary
from chop.formats.binary import mean_magnitude
from chop.formats.learnt import given
from chop.formats.scaling import GivenScale
from chop.kernels.eager.chunked import line_chunks
from chop.kernels.plan import measures_mean

UNIT_ROUNDOFF = 2.0**-53


def scales_of_lines(
    lines: Tensor, number_format: Binary | ScaleInteger | Ternary, above: float | None = None
) -> Tensor:
    """float64, (lines, 1): the scales of (lines, elements), which are float32 numbers.

    Args:
        lines: floating.
        number_format: with a scale for each line.
        above: a float32: means are of the magnitudes above it; None for all.
    """
    if number_format.scales is not None:
        return GivenScale(given(number_format.scales, lines)).measure(lines).values
    if isinstance(number_format, ScaleInteger):
        return number_format.scaling.measure(_covered(lines, number_format).double()).values
    return means_of(lines, above).double()


def _covered(lines: Tensor, number_format: ScaleInteger) -> Tensor:
    """(lines, 1): the magnitude that each line's scale has to cover."""
    kept = math.ceil(number_format.quantile * lines.size(1))
    if kept == lines.size(1) and number_format.is_signed:
        return largest_of(lines)
    values = lines.abs() if number_format.is_signed else lines.clamp(min=0)
    values = values.nan_to_num(nan=0.0, posinf=0.0)
    if kept == lines.size(1):
        return values.amax(-1, keepdim=True)
    return values.kthvalue(kept, -1, keepdim=True).values


def largest_of(lines: Tensor) -> Tensor:
    """float32, (lines, 1): the largest finite magnitudes of (lines, elements)."""
    largest = torch.maximum(lines.amax(-1, keepdim=True), -lines.amin(-1, keepdim=True))
    poisoned = ~largest.isfinite().squeeze(1)
    if poisoned.any():
        finite = lines[poisoned].abs().nan_to_num(nan=0.0, posinf=0.0)
        largest[poisoned] = finite.amax(-1, keepdim=True)
    return largest.abs().float()


def means_of(lines: Tensor, above: float | None = None) -> Tensor:
    """The reference's means of finite magnitudes, or of those above a number, as float32 rounds.

    Sums depend on the order of their terms. Where the bounds of any order round to one float32,
    that is it; the few other lines are left to the reference.

    Args:
        lines: (lines, elements), floating.
        above: a float32, or None for all.
    Returns: float32, (lines, 1).
    """
    low, high = bounds_of_means(lines, above)
    means = low.float()
    is_open = (means != high.float()).squeeze(1)  # or NaN
    if is_open.any():
        exact = lines[is_open].double()
        if above is not None:
            exact = exact.masked_fill(exact.abs() <= above, torch.nan)
        means[is_open] = mean_magnitude(exact).float()
    return means


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


def threshold_of(x: Tensor, number_format: Ternary) -> float:
    """The largest float32 not above the reference's threshold, which parts float32 alike."""
    line = x.reshape(1, -1)
    if number_format.max is True:
        return _float_below(number_format.threshold_of(largest_of(line)))
    if number_format.median is True:
        magnitudes = x[x.isfinite()].abs()
        middle = magnitudes.median().view(1) if magnitudes.numel() else x.new_zeros(1)
        return _float_below(number_format.threshold_of(middle))
    if not measures_mean(number_format):
        return _float_below(number_format.threshold_of(x.new_zeros(1)))
    low, high = bounds_of_means(line)
    if low.isfinite():
        below, above = (_float_below(number_format.threshold_of(m)) for m in (low, high))
        if below == above:
            return below
    return _float_below(number_format.threshold_of(x))


def _float_below(number: float) -> float:
    nearest = torch.tensor(number, dtype=torch.float32, device="cpu")
    if nearest.double() > number:
        nearest = nearest.nextafter(torch.tensor(-torch.inf, device="cpu"))
    return nearest.item()
