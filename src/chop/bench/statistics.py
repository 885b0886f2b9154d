"""Ratios of times that were taken in turns, and how sure they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from chop.statistics.intervals import LEVEL

MIN_PAIRS = 10
"""Intervals of ten hold the median in 90 % of cases, those of twenty in 95 %; of fewer, less."""
RESAMPLES = 2000
RESOLUTION = 0.01
"""The same code with its data at other addresses may differ by as much."""


@dataclass(frozen=True)
class Interval:
    """A ratio, and the bounds within which it lies.

    Attributes:
        median: of the pairs.
        low: lower bound; 0 where nothing is known.
        high: upper bound; infinity where nothing is known.
    """

    median: float
    low: float = 0.0
    high: float = math.inf

    @property
    def spans_one(self) -> bool:
        """True when no difference is shown: the bounds leave 1, give or take 1 %, between them."""
        return self.low <= 1 + RESOLUTION and self.high >= 1 - RESOLUTION

    @property
    def is_known(self) -> bool:
        """False when there are no bounds."""
        return self.high < math.inf


def paired_ratio(
    above: Sequence[float], below: Sequence[float], *, confidence: float = LEVEL, seed: int = 0
) -> Interval:
    """The median of ratios `above[i] / below[i]`, with bootstrap percentiles of that median.

    A pair is taken close together in time, so what slows the machine slows both and cancels.

    Args:
        above: positive numbers, in the order in which they were measured.
        below: as many.
        confidence: share of all such intervals that hold the true median, from 0 to 1.
        seed: of the resampling.
    Returns: bounds are unknown for fewer than ten pairs.
    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, section 13.3.

    >>> paired_ratio([2.0] * 10, [1.0] * 10)
    Interval(median=2.0, low=2.0, high=2.0)
    """
    ratios = torch.tensor(
        [a / b for a, b in zip(above, below, strict=True)], dtype=torch.float64, device="cpu"
    )
    middle = ratios.quantile(0.5).item()
    if len(ratios) < MIN_PAIRS:
        return Interval(middle)
    generator = torch.Generator("cpu").manual_seed(seed)
    shape = (RESAMPLES, len(ratios))
    chosen = torch.randint(len(ratios), shape, generator=generator, device="cpu")
    medians = ratios[chosen].quantile(0.5, dim=1)
    tail = (1 - confidence) / 2
    return Interval(middle, medians.quantile(tail).item(), medians.quantile(1 - tail).item())
