"""Statistics of lines in PyTorch alone, without copies of the tensor."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from chop.formats.statistic import LARGEST, Statistic
from chop.kernels.eager.chunked import FLOAT32, line_chunks
from chop.kernels.measure import Statistics
from chop.kernels.plan import UNIT_ROUNDOFF

WIDE = 64
"""Elements of a line from which both ends of its range are found sooner than its largest bits."""


class EagerStatistics(Statistics):
    """By chunks that stay in the caches."""

    marks_non_finite = True

    def largest(self, lines: Tensor, statistic: Statistic = LARGEST) -> Tensor:
        """By the range, or the bits of magnitudes, which have their order with NaN above all."""
        if not (statistic.is_signed and statistic.quantile == 1):
            return statistic.of(lines).float()
        if lines.size(1) >= WIDE:
            ends = lines.amax(-1, keepdim=True), -lines.amin(-1, keepdim=True)
            return torch.maximum(*ends).abs().float()
        tops = torch.zeros(lines.size(0), 1, dtype=torch.int32, device=lines.device)
        for (part, top), buffers in line_chunks(lines, tops):
            lane, is_whole = buffers.lane("bits", FLOAT32, part.shape), part.dtype == torch.float32
            exact = part if is_whole else lane.values.copy_(part)
            magnitude = buffers.constant(~FLOAT32.sign, torch.int32)
            torch.bitwise_and(exact.view(torch.int32), magnitude, out=lane.bits)
            torch.maximum(top, lane.bits.amax(-1, keepdim=True), out=top)
        return tops.view(torch.float32)

    def mean_bounds(self, lines: Tensor, above: float | None = None) -> tuple[Tensor, Tensor]:
        """By sums of float64; NaN for lines with a NaN or an infinity."""
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

    def median(self, line: Tensor) -> float:
        """By sorting."""
        magnitudes = line[line.isfinite()].abs()
        return magnitudes.median().item() if magnitudes.numel() else 0.0


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
