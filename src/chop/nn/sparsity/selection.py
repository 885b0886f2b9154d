"""Exact selection of the `count` smallest of many numbers, including ties."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def lowest_by_sorting(scores: Sequence[Tensor], count: int) -> list[Tensor]:
    """Readable reference of `lowest`, more than twenty times slower."""
    joined = torch.cat([x.reshape(-1) for x in _comparable(scores)])
    chosen = torch.zeros(joined.shape, dtype=torch.bool, device=joined.device)
    chosen[joined.argsort(stable=True)[:count]] = True
    parts = chosen.split([x.numel() for x in scores])
    return [part.view(x.shape) for part, x in zip(parts, scores, strict=True)]


def lowest(scores: Sequence[Tensor], count: int) -> list[Tensor]:
    """Marks exactly `count` smallest elements of all the tensors together.

    Among equal elements the first are selected. NaN counts as the largest number.

    Args:
        scores: any shapes, floating dtypes; they may be on different devices.
        count: 0 to the number of elements.
    Returns: boolean tensors of the same shapes, True for the smallest.
    """
    if count == 0:
        return [torch.zeros_like(x, dtype=torch.bool) for x in scores]
    values = _comparable(scores)
    threshold = kth_smallest(values, count)
    has_nan = math.isnan(threshold)
    chosen = [~x.isnan() if has_nan else x < threshold for x in values]
    missing = count - sum(int(torch.count_nonzero(mask)) for mask in chosen)
    for x, mask in zip(values, chosen, strict=True):
        if missing == 0:
            break
        tied = (x.isnan() if has_nan else x == threshold).view(-1).nonzero()[:missing, 0]
        mask.view(-1)[tied] = True
        missing -= len(tied)
    return chosen


def _comparable(scores: Sequence[Tensor]) -> list[Tensor]:
    """Converts scores to one dtype, so that comparisons do not round the threshold."""
    is_double = any(x.dtype == torch.float64 for x in scores)
    dtype = torch.float64 if is_double else torch.float32
    return [x.detach().to(dtype).contiguous() for x in scores]


def kth_smallest(values: Sequence[Tensor], k: int) -> float:
    """Returns the k-th smallest element of all the tensors together, k from 1; NaN is the largest.

    It uses numpy, since `torch.quantile` is limited to 16 million elements, and `torch.kthvalue`
    takes several times as long.
    """
    joined = torch.cat([x.reshape(-1).cpu() for x in _comparable(values)]).numpy()
    joined.partition(k - 1)
    return float(joined[k - 1])
