"""95 % confidence intervals: Wilson score intervals of shares, and bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import torch
from torch import Tensor

LEVEL = 0.95
"""Confidence level of every interval: of metrics, of ratios of times, and in charts."""
LEVEL_TEXT = f"{100 * LEVEL:.0f} %"
"""The level in texts."""
NORMAL = NormalDist().inv_cdf((1 + LEVEL) / 2)
"""Standard errors to either side of a normally distributed estimate."""
DRAWS = 1000
"""Number of draws of a bootstrap that decides between two configurations."""

Interval = tuple[float, float]


def wilson(right: float, count: int) -> Interval:
    """Returns the Wilson score interval of a proportion at the level `LEVEL`.

    Source: Wilson, Probable inference, the law of succession, and statistical inference, Journal
        of the American Statistical Association 22, 1927.

    >>> [round(end, 4) for end in wilson(9, 10)]
    [0.5958, 0.9821]
    """
    if not count:
        return 0.0, 1.0
    z2, share = NORMAL**2, right / count
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = math.sqrt(z2 * (share * (1 - share) + z2 / (4 * count)) / count) / (1 + z2 / count)
    # Rounding must not leave a share of 0 or 1 outside of its own interval.
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def wilson_of_share(share: float, count: int) -> Interval:
    """Returns the Wilson score interval of a proportion of `count` answers."""
    return wilson(round(share * count), count)


def interval_of_estimate(value: float, error: float) -> Interval:
    """Returns the interval of a proportion from its standard error, clipped to 0 and 1.

    >>> [round(end, 3) for end in interval_of_estimate(0.9, 0.1)]
    [0.704, 1.0]
    """
    return max(0.0, value - NORMAL * error), min(1.0, value + NORMAL * error)


def bootstrap(statistic: Callable[[Tensor], float], count: int, draws: int = DRAWS) -> Interval:
    """Returns the percentile bootstrap interval of a statistic at the level `LEVEL`.

    Args:
        statistic: function of int64 (count,), the drawn places of answers.
        count: number of answers.
        draws: number of resamples, drawn with replacement.
    """
    draw = torch.Generator().manual_seed(0)
    drawn = [statistic(torch.randint(count, (count,), generator=draw)) for _ in range(draws)]
    ends = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64)
    low, high = torch.tensor(drawn, dtype=torch.float64).quantile(ends).tolist()
    return low, high
