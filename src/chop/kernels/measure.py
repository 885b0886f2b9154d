"""Measurement of scales and thresholds before rounding, bit-identical to the reference."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from chop.formats.layout import Layout
from chop.formats.scaling import StaticScale, has_non_finite
from chop.formats.statistic import LARGEST, MEAN, Statistic, Threshold


class Statistics(ABC):
    """Interface for statistics of lines (lines, elements).

    Attributes:
        marks_non_finite: True if `largest` is non-finite for every line with a NaN or infinity.
    """

    marks_non_finite: bool = False

    @abstractmethod
    def largest(self, lines: Tensor, statistic: Statistic = LARGEST) -> Tensor:
        """Returns a statistic of the kind `largest`: float32, (lines, 1).

        Non-finite results are recomputed by the caller.
        """

    @abstractmethod
    def mean_bounds(self, lines: Tensor, above: float | None = None) -> tuple[Tensor, Tensor]:
        """Returns bounds of the mean finite magnitude over all orders of summation.

        Args:
            lines: floating-point lines.
            above: float32 threshold below which magnitudes are excluded; None includes all.
        Returns: float64 lower and upper bounds, (lines, 1) each; NaN if the reference must decide.
        """

    @abstractmethod
    def median(self, line: Tensor) -> float:
        """Returns the lower median of finite magnitudes; 0 if there are none."""

    def scales(self, lines: Tensor, layout: Layout) -> Tensor:
        """Returns the reference's scale of each line, float64 (lines, 1). A line is a whole group.

        Args:
            lines: floating-point (lines, elements).
            layout: layout; its threshold, if any, must be a float32 number.
        """
        scaling, element = layout.scaling, layout.element
        if scaling is None:
            return lines.new_ones(lines.size(0), 1, dtype=torch.float64)
        if isinstance(scaling, StaticScale):
            return scaling.measure(lines).values
        statistic, above = scaling.statistic, element.threshold
        if statistic is None or scaling.follows_values or isinstance(above, Threshold):
            return by_reference(lines, layout)
        if statistic.kind == "largest" and (above is None or statistic.quantile == 1):
            statistics, non_finite = self._finite_and_flags(lines, statistic, scaling.has_nan)
            if above is not None:
                statistics = statistics.masked_fill(statistics <= above, 0.0)
            return scaling.scales(statistics.double(), non_finite).values
        if statistic != MEAN:
            return by_reference(lines, layout)
        non_finite = has_non_finite(lines) if scaling.has_nan else None
        low, high = (scaling.scales(x, non_finite).values for x in self.mean_bounds(lines, above))
        # A sum depends on the order of its terms. If the lower and upper bound over all orders give
        # the same scale, it is the reference's. The few other lines are measured by the reference.
        is_open = (low != high).squeeze(1)  # also True for NaN
        if is_open.any():
            low[is_open] = by_reference(lines[is_open], layout)
        return low

    def _finite_and_flags(
        self, lines: Tensor, statistic: Statistic, asks_non_finite: bool
    ) -> tuple[Tensor, Tensor | None]:
        statistics = self.largest(lines, statistic)
        is_open = ~statistics.isfinite()
        if is_open.any():
            statistics[is_open] = statistic.of(lines[is_open.squeeze(1)].float()).squeeze(1)
        if not asks_non_finite:
            return statistics, None
        return statistics, is_open if self.marks_non_finite else has_non_finite(lines)

    def fitted(self, layout: Layout, x: Tensor) -> Layout:
        """Returns the layout with the threshold measured on the tensor, if it has one.

        The threshold is rounded down to float32, which separates float32 numbers identically.
        """
        threshold = layout.element.threshold
        if threshold is None:
            return layout
        return layout.with_threshold(float_below(self._threshold(x, threshold)))

    def _threshold(self, x: Tensor, threshold: Threshold | float) -> float:
        if isinstance(threshold, float):
            return threshold
        line = x.reshape(1, -1)
        if threshold.kind == "largest":
            return threshold.factor * self._finite_and_flags(line, LARGEST, False)[0].item()
        if threshold.kind == "median":
            return threshold.factor * self.median(line)
        # The reference decides if the order of summation could change the threshold.
        ends = [threshold.factor * mean.item() for mean in self.mean_bounds(line)]
        if all(map(math.isfinite, ends)) and float_below(ends[0]) == float_below(ends[1]):
            return ends[0]
        return threshold.of(x)


def by_reference(lines: Tensor, layout: Layout) -> Tensor:
    """Returns the scales by the reference's order of summation: float64, (lines, 1)."""
    assert layout.scaling is not None
    exact = lines.double()
    return layout.scaling.measure(exact, layout.counted(exact)).values


def float_below(number: float) -> float:
    """Rounds a number down to float32."""
    nearest = torch.tensor(number, dtype=torch.float32, device="cpu")
    if nearest.double() > number:
        nearest = nearest.nextafter(torch.tensor(-torch.inf, device="cpu"))
    return nearest.item()
