"""Which are the `count` smallest of many numbers, exactly, whatever the ties."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from chop.formats import even_sample

SAMPLE = 2**20
# Standard deviations of a sampled rank between the middle and the ends of the bracket.
MARGIN = 5.0


def lowest_by_sorting(scores: Sequence[Tensor], count: int) -> list[Tensor]:
    """The readable reference of `lowest`."""
    joined = torch.cat([_comparable(x).reshape(-1) for x in scores])
    chosen = torch.zeros(joined.shape, dtype=torch.bool, device=joined.device)
    chosen[joined.argsort(stable=True)[:count]] = True
    parts = chosen.split([x.numel() for x in scores])
    return [part.view(x.shape) for part, x in zip(parts, scores, strict=True)]


def lowest(scores: Sequence[Tensor], count: int) -> list[Tensor]:
    """Marks exactly `count` smallest elements of all the tensors together.

    Of equal elements the first are taken. NaN counts as the largest number.

    Args:
        scores: any shapes, floating dtypes; they may lie on different devices.
        count: 0 to the number of elements.
    Returns: boolean tensors of the same shapes, True for the smallest.
    """
    if count == 0:
        return [torch.zeros_like(x, dtype=torch.bool) for x in scores]
    values = [_comparable(x) for x in scores]
    threshold = _kth_smallest(values, count)
    chosen = [x < threshold for x in values]
    missing = count - sum(_count(mask) for mask in chosen)
    for x, mask in zip(values, chosen, strict=True):
        if missing == 0:
            break
        tied = (x == threshold).view(-1).nonzero()[:missing, 0]
        mask.view(-1)[tied] = True
        missing -= len(tied)
    return chosen


def _comparable(x: Tensor) -> Tensor:
    x = x.detach().to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    return x.nan_to_num(math.inf, math.inf, -math.inf).contiguous()


def _count(mask: Tensor) -> int:
    return int(torch.count_nonzero(mask))


def _kth_smallest(values: Sequence[Tensor], k: int) -> float:
    """The k-th smallest element, k from 1, without sorting or joining the tensors.

    A random sample tells two numbers between which it almost certainly lies; what lies below is
    counted and what lies between is searched. Where the sample misled, everything is searched.

    Source: Floyd and Rivest 1975, "Expected time bounds for selection", section 2.
    """
    total = sum(x.numel() for x in values)
    low, high = _bracket(values, k, total)
    below = sum(_count(x < low) for x in values)
    between = torch.cat([x[(x >= low) & (x <= high)].cpu() for x in values])
    if not below < k <= below + len(between):
        between, below = torch.cat([x.view(-1).cpu() for x in values]), 0
    return between.kthvalue(k - below).values.item()


def _bracket(values: Sequence[Tensor], k: int, total: int) -> tuple[float, float]:
    if total <= 2 * SAMPLE:
        return -math.inf, math.inf
    parts = [even_sample(x, max(1, SAMPLE * x.numel() // total)).cpu() for x in values]
    sample = torch.cat(parts).sort().values
    share, size = k / total, len(sample)
    margin = MARGIN * math.sqrt(size * share * (1 - share)) + 1
    low, high = math.floor(share * size - margin), math.ceil(share * size + margin)
    return (
        sample[low].item() if low >= 0 else -math.inf,
        sample[high].item() if high < size else math.inf,
    )
