"""Statistics of lines, computed by the C++ loops."""

from __future__ import annotations

import ctypes
import math
from ctypes import byref, c_double, c_float, c_int64, c_void_p
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from chop.formats import reference
from chop.formats.layout import Layout
from chop.formats.scaling import StaticScale
from chop.formats.statistic import LARGEST, Statistic
from chop.kernels.measure import Statistics, float_below
from chop.kernels.plan import EVERY_BIT, EVERY_MAGNITUDE, UNIT_ROUNDOFF, LoopParameters

EVERYTHING = -1.0
"""Threshold below every magnitude."""
HALF = -1
"""Rank that selects the lower median."""


def pointer(x: Tensor | None) -> c_void_p:
    """Returns the address of a tensor's memory; null for None."""
    return c_void_p(None if x is None else x.data_ptr())


def _column(lines: Tensor) -> Tensor:
    return torch.empty(lines.size(0), 1, dtype=torch.float32, device="cpu")


@dataclass(frozen=True)
class NativeStatistics(Statistics):
    """Statistics by C++ loops, each in one pass over memory.

    Attributes:
        loops: compiled library.
    """

    loops: ctypes.CDLL

    def largest(self, lines: Tensor, statistic: Statistic = LARGEST) -> Tensor:
        """Compares float32 numbers as integers; quantiles use a selection."""
        # Bits of non-negative floats sort like the numbers. With their sign bit, negative numbers
        # are negative integers and never the largest.
        mask = EVERY_MAGNITUDE if statistic.is_signed else EVERY_BIT
        beyond = lines.size(1) - math.ceil(statistic.quantile * lines.size(1))
        if beyond:
            return self.order_statistics(lines, mask, beyond)
        lines, largest = lines.float(), _column(lines)
        sizes = *map(c_int64, lines.shape), torch.get_num_threads()
        self.loops.chop_largest(pointer(lines), pointer(largest), mask, *sizes)
        return largest

    def order_statistics(self, lines: Tensor, mask: int, rank: int) -> Tensor:
        """Returns the magnitudes with `rank` larger ones, or the medians: float32, (lines, 1)."""
        lines, results = lines.float(), _column(lines)
        sizes = *map(c_int64, (rank, *lines.shape)), torch.get_num_threads()
        self.loops.chop_order_statistics(pointer(lines), pointer(results), mask, *sizes)
        return results

    def median(self, line: Tensor) -> float:
        """Selects the median without sorting."""
        return self.order_statistics(line, EVERY_MAGNITUDE, HALF).item()

    def mean_bounds(self, lines: Tensor, above: float | None = None) -> tuple[Tensor, Tensor]:
        """Bounds the mean by float64 sums."""
        lines = lines.float()
        low, high = lines.new_empty(2, lines.size(0), 1, dtype=torch.float64)
        self.loops.chop_means(
            pointer(lines),
            c_float(EVERYTHING if above is None else above),
            *map(pointer, (low, high)),
            c_double(UNIT_ROUNDOFF),
            *map(c_int64, lines.shape),
            torch.get_num_threads(),
        )
        return low, high

    def tensor_scale(self, x: Tensor, layout: Layout) -> float:
        """Returns the factor that all scales of a tensor share."""
        assert layout.scaling is not None
        largest = self.largest(x.view(1, -1))
        tensor_scale = layout.scaling.scales(largest.double()).tensor_scale
        assert tensor_scale is not None
        return tensor_scale.item()

    def with_factors(
        self, plan: LoopParameters, x: Tensor, memory: Tensor, layout: Layout
    ) -> LoopParameters:
        """Returns a copy of the plan with the factors of all levels.

        Args:
            plan: plan without factors.
            x: tensor to round.
            memory: elements of `x` in memory order.
            layout: multi-level layout.
        """
        plan = LoopParameters.from_buffer_copy(plan)
        assert layout.levels is not None
        plan.levels = layout.levels
        if isinstance(layout.scaling, StaticScale):
            factors = layout.scaling.known(x.device)
        else:
            measured = self._factors(plan, memory.float(), plan.levels)
            factors = reference.scales_of_levels(layout, x) if measured is None else measured
        plan.factors[: plan.levels] = factors.double().tolist()
        # The reference's sum, rounded down to float32: it separates float32 numbers identically.
        plan.highest_unsaturated = float_below(factors.double().sum().item())
        plan.lowest_unsaturated = -plan.highest_unsaturated
        return plan

    def _factors(self, plan: LoopParameters, memory: Tensor, depth: int) -> Tensor | None:
        """Returns the mean residual of each level, float32 (depth,); None if one is uncertain."""
        plan = LoopParameters.from_buffer_copy(plan)
        bounds = torch.empty(2, dtype=torch.float64)
        for level in range(depth):
            plan.levels = level
            self.loops.chop_mean_of_rests(
                byref(plan),
                *map(pointer, (memory, bounds[0], bounds[1])),
                c_double(UNIT_ROUNDOFF),
                c_int64(memory.numel()),
                torch.get_num_threads(),
            )
            low, high = bounds.float().tolist()
            # Each level depends on the factors before it, so one uncertain factor ends the pass.
            if low != high:
                return None
            plan.factors[level] = low
        return torch.tensor(plan.factors[:depth])


@lru_cache(maxsize=8)
def native(loops: ctypes.CDLL) -> NativeStatistics:
    """Returns the cached statistics object of a library."""
    return NativeStatistics(loops)
