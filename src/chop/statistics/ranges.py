"""Statistics of ranges: extremes, quantiles and histograms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from chop.config import Range, check_fields
from chop.errors import ConfigError
from chop.statistics.base import Reduction
from chop.statistics.reservoir import Reservoir

# A quantile per channel from fewer numbers would not be an estimate.
MIN_SAMPLES_PER_CELL = 1024
# The narrowest histogram reaches from -2^-60 to 2^-60.
MIN_EXPONENT = -60


@dataclass
class MinMaxRange(Reduction):
    """Exact minimum and maximum.

    Attributes:
        abs: measures magnitudes.
    """

    name: ClassVar[str] = "range_min_max"

    abs: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._ends: tuple[Tensor, Tensor] | None = None

    def observe(self, values: Tensor) -> None:
        """Widens the range to that of the batch."""
        low, high = (values.abs() if self.abs else values).aminmax(dim=1)
        if self._ends is not None:
            low, high = torch.minimum(self._ends[0], low), torch.maximum(self._ends[1], high)
        self._ends = low, high

    def compute(self) -> dict[str, Any]:
        """Returns `min`, `max` and `range` in the reduced shape, and `count` per cell."""
        low, high = map(self.reduced, self._ends or (torch.empty(0), torch.empty(0)))
        return {"min": low, "max": high, "range": high - low, "count": self.count}


@dataclass
class QuantileRange(Reduction):
    """Range from the quantile 1 - q to the quantile q, interpolated as in `torch.quantile`.

    Exact up to `max_samples` numbers over all cells (at least 1,024 per cell). Beyond that, a
    uniform sample of n numbers is kept, and the rank of the result has a standard error of
    sqrt(q (1 - q) / n): 0.00067 for the default q and 65,536 numbers.

    Attributes:
        abs: measures magnitudes.
        quantile: q, from 0.5 to 1.
        max_samples: maximum number of values to keep.
    """

    name: ClassVar[str] = "range_quantile"

    abs: bool = False
    quantile: Annotated[float, Range(0.5, 1)] = 0.975
    max_samples: int = 2**16

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, self.name)
        self._sample: Reservoir | None = None

    def observe(self, values: Tensor) -> None:
        """Adds the batch to the sample."""
        if self._sample is None:
            cells = max(values.shape[0], 1)
            self._sample = Reservoir(max(self.max_samples // cells, MIN_SAMPLES_PER_CELL))
        self._sample.add(values.abs() if self.abs else values)

    def compute(self) -> dict[str, Any]:
        """Returns `min`, `max` and `range` in the reduced shape, and `count` per cell."""
        sample = self._sample.columns() if self._sample else None
        ordered = (torch.empty(0, 1) if sample is None else sample).sort(1).values
        low, high = (
            self.reduced(_quantile(ordered, q)) for q in (1 - self.quantile, self.quantile)
        )
        return {"min": low, "max": high, "range": high - low, "count": self.count}


def _quantile(ordered: Tensor, q: float) -> Tensor:
    """Returns `torch.quantile` of sorted rows of any length."""
    position = q * (ordered.shape[1] - 1)
    below, above = ordered[:, math.floor(position)], ordered[:, math.ceil(position)]
    return below.lerp(above, position - math.floor(position))


@dataclass
class Histogram(Reduction):
    """Exact counts in equal bins over the narrowest range -2^e to 2^e that holds every number.

    A number on an edge belongs to the bin above it. If a batch needs a wider range, e grows and
    neighboring bins are added up, so the counts are those of the whole stream.

    Attributes:
        bins: number of bins, a power of two from 4.
    """

    name: ClassVar[str] = "histogram"

    bins: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bins < 4 or self.bins & (self.bins - 1):
            raise ConfigError(
                f"histogram.bins: expected a power of two, at least 4, got {self.bins}."
            )
        self._exponent = MIN_EXPONENT
        self._counts: Tensor | None = None
        self._not_finite = 0

    def observe(self, values: Tensor) -> None:
        """Counts the batch. Numbers that are not finite have their own count."""
        cells, device = values.shape[0], values.device
        if self._counts is None:
            self._counts = torch.zeros(cells, self.bins, dtype=torch.int64, device=device)
        finite = values.isfinite()
        self._not_finite += int((~finite).sum())
        numbers = values[finite]
        if not numbers.numel():
            return
        self._widen(int(torch.frexp(numbers.abs().max()).exponent))
        # Dividing by a power of two is exact, adding 2^e to a small number would not be.
        step = 2.0 ** (self._exponent + 1) / self.bins
        index = (numbers / step).floor().long() + self.bins // 2
        cell = torch.arange(cells, device=device)[:, None].expand_as(values)[finite]
        counts = torch.bincount(cell * self.bins + index, minlength=cells * self.bins)
        self._counts += counts.view(cells, self.bins)

    def _widen(self, exponent: int) -> None:
        assert self._counts is not None
        quarter = self.bins // 4
        while self._exponent < exponent:
            pairs = self._counts.view(len(self._counts), -1, 2).sum(2)
            self._counts = torch.nn.functional.pad(pairs, (quarter, quarter))
            self._exponent += 1

    def compute(self) -> dict[str, Any]:
        """Returns `counts` (..., bins), `edges` (bins + 1), `not_finite` and `count` per cell."""
        counts = self.reduced(torch.empty(0) if self._counts is None else self._counts)
        reach = 2.0**self._exponent
        edges = torch.linspace(-reach, reach, self.bins + 1, dtype=torch.float64)
        histogram = {"counts": counts, "edges": edges, "not_finite": self._not_finite}
        return {**histogram, "count": self.count}
