"""Scales and thresholds, bit for bit the reference's, measured before the pass that rounds."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from chop.formats.layout import Layout
from chop.formats.scaling import StaticScale, has_non_finite
from chop.formats.statistic import LARGEST, MEAN, Statistic, Threshold


class Statistics(ABC):
    """How statistics of lines, (lines, elements), are found.

    Attributes:
        marks_non_finite: `largest` is not finite for every line with a NaN or an infinity.
    """

    marks_non_finite: bool = False

    @abstractmethod
    def largest(self, lines: Tensor, statistic: Statistic = LARGEST) -> Tensor:
        """float32, (lines, 1): a statistic of the kind `largest`.

        Lines with a NaN or an infinity may have one, and are then asked again.
        """

    @abstractmethod
    def mean_bounds(self, lines: Tensor, above: float | None = None) -> tuple[Tensor, Tensor]:
        """Two bounds of the mean finite magnitude that any order of summation can give.

        Args:
            lines: floating.
            above: a float32: means are of the magnitudes above it; None for all.
        Returns: float64, (lines, 1) each; NaN where the reference has to be asked.
        """

    @abstractmethod
    def median(self, line: Tensor) -> float:
        """The lower median of finite magnitudes; 0 if there are none."""

    def scales(self, lines: Tensor, layout: Layout) -> Tensor:
        """float64, (lines, 1): the reference's scale of each line, a whole group.

        Args:
            lines: floating, (lines, elements).
            layout: with the threshold as a float32 number if it has one.
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
            found, non_finite = self._finite_and_flags(lines, statistic, scaling.has_nan)
            if above is not None:
                found = found.masked_fill(found <= above, 0.0)
            return scaling.scales(found.double(), non_finite).values
        if statistic != MEAN:
            return by_reference(lines, layout)
        non_finite = has_non_finite(lines) if scaling.has_nan else None
        low, high = (scaling.scales(x, non_finite).values for x in self.mean_bounds(lines, above))
        # Sums depend on the order of their terms. Where the bounds of any order have one scale,
        # that is it; the few other lines are left to the reference.
        is_open = (low != high).squeeze(1)  # or NaN
        if is_open.any():
            low[is_open] = by_reference(lines[is_open], layout)
        return low

    def _finite_and_flags(
        self, lines: Tensor, statistic: Statistic, asks_non_finite: bool
    ) -> tuple[Tensor, Tensor | None]:
        found = self.largest(lines, statistic)
        is_open = ~found.isfinite()
        if is_open.any():
            found[is_open] = statistic.of(lines[is_open.squeeze(1)].float()).squeeze(1)
        if not asks_non_finite:
            return found, None
        return found, is_open if self.marks_non_finite else has_non_finite(lines)

    def fitted(self, layout: Layout, x: Tensor) -> Layout:
        """The layout with the tensor's threshold, if it has one.

        The threshold is the largest float32 not above the reference's, which parts float32 alike.
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
        ends = [threshold.factor * mean.item() for mean in self.mean_bounds(line)]
        if all(map(math.isfinite, ends)) and float_below(ends[0]) == float_below(ends[1]):
            return ends[0]
        return threshold.of(x)


def by_reference(lines: Tensor, layout: Layout) -> Tensor:
    """float64, (lines, 1): scales in the reference's own order."""
    assert layout.scaling is not None
    exact = lines.double()
    return layout.scaling.measure(exact, layout.counted(exact)).values


def float_below(number: float) -> float:
    """The largest float32 that is not above a number."""
    nearest = torch.tensor(number, dtype=torch.float32, device="cpu")
    if nearest.double() > number:
        nearest = nearest.nextafter(torch.tensor(-torch.inf, device="cpu"))
    return nearest.item()
