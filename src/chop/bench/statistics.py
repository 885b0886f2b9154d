"""Ratios of interleaved times, with bootstrap confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from chop.errors import ConfigError
from chop.statistics.intervals import LEVEL

MIN_PAIRS = 10
"""Minimum number of pairs. Intervals cover the median in 90 % of cases, of 20 pairs in 95 %."""
RESAMPLES = 2000
RESOLUTION = 0.01
"""Smallest ratio that counts: the same code at other addresses may differ by as much."""


@dataclass(frozen=True)
class Interval:
    """Ratio with its confidence bounds.

    Attributes:
        median: median of the pairs.
        low: lower bound; 0 if unknown.
        high: upper bound; infinity if unknown.
    """

    median: float
    low: float = 0.0
    high: float = math.inf

    @property
    def spans_one(self) -> bool:
        """True if no difference is shown: the bounds contain 1, with a tolerance of 1 %."""
        return self.low <= 1 + RESOLUTION and self.high >= 1 - RESOLUTION

    @property
    def is_known(self) -> bool:
        """True if there are bounds."""
        return self.high < math.inf


def paired_ratio(
    above: Sequence[float], below: Sequence[float], *, confidence: float = LEVEL, seed: int = 0
) -> Interval:
    """Returns the median of the ratios `above[i] / below[i]` with bootstrap percentiles.

    The two times of a pair are measured close together, so load from other processes cancels.

    Args:
        above: positive numbers, in the order of measurement.
        below: as many positive numbers.
        confidence: coverage of the interval, from 0 to 1.
        seed: seed of the resampling.
    Returns: the interval; its bounds are unknown for fewer than ten pairs.
    Raises:
        ConfigError: if there are no numbers, unequally many, or a number is not positive.
    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, section 13.3.

    >>> paired_ratio([2.0] * 10, [1.0] * 10)
    Interval(median=2.0, low=2.0, high=2.0)
    """
    if not above or len(above) != len(below):
        raise ConfigError(
            f"expected as many numbers above as below, got {len(above)} and {len(below)}."
        )
    if wrong := [x for x in (*above, *below) if not x > 0]:
        raise ConfigError(f"expected positive numbers above and below, got {wrong[0]}.")
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
