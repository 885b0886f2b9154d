"""Statistics of lines by the C++ loops."""

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
"""Below every magnitude."""
HALF = -1
"""The rank of the lower median."""


def pointer(x: Tensor | None) -> c_void_p:
    """Where a tensor's memory begins; null for None."""
    return c_void_p(None if x is None else x.data_ptr())


def _column(lines: Tensor) -> Tensor:
    return torch.empty(lines.size(0), 1, dtype=torch.float32, device="cpu")


@dataclass(frozen=True)
class NativeStatistics(Statistics):
    """One pass over memory for each.

    Attributes:
        loops: the library.
    """

    loops: ctypes.CDLL

    def largest(self, lines: Tensor, statistic: Statistic = LARGEST) -> Tensor:
        """By comparing, or selecting, the bits of floats."""
        mask = EVERY_MAGNITUDE if statistic.is_signed else EVERY_BIT
        beyond = lines.size(1) - math.ceil(statistic.quantile * lines.size(1))
        if beyond:
            return self.order_statistics(lines, mask, beyond)
        lines, largest = lines.float(), _column(lines)
        sizes = *map(c_int64, lines.shape), torch.get_num_threads()
        self.loops.chop_largest(pointer(lines), pointer(largest), mask, *sizes)
        return largest

    def order_statistics(self, lines: Tensor, mask: int, rank: int) -> Tensor:
        """float32, (lines, 1): the finite magnitudes with `rank` larger ones, or 0; or medians."""
        lines, found = lines.float(), _column(lines)
        sizes = *map(c_int64, (rank, *lines.shape)), torch.get_num_threads()
        self.loops.chop_order_statistics(pointer(lines), pointer(found), mask, *sizes)
        return found

    def median(self, line: Tensor) -> float:
        """By selecting."""
        return self.order_statistics(line, EVERY_MAGNITUDE, HALF).item()

    def mean_bounds(self, lines: Tensor, above: float | None = None) -> tuple[Tensor, Tensor]:
        """By sums of float64."""
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
        """The factor that all scales of this tensor share."""
        assert layout.scaling is not None
        largest = self.largest(x.view(1, -1))
        of_all = layout.scaling.scales(largest.double()).of_tensor
        assert of_all is not None
        return of_all.item()

    def with_factors(
        self, plan: LoopParameters, x: Tensor, memory: Tensor, layout: Layout
    ) -> LoopParameters:
        """The plan with the factors of all levels.

        Args:
            plan: without them.
            x: the tensor.
            memory: its elements in the order of memory.
            layout: says how many levels there are.
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
        # The sum as the reference has it, rounded down: that parts float32 alike.
        plan.kept_high = float_below(factors.double().sum().item())
        plan.kept_low = -plan.kept_high
        return plan

    def _factors(self, plan: LoopParameters, memory: Tensor, depth: int) -> Tensor | None:
        """float32 (depth,): means of what the levels before leave; None where one is uncertain."""
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
            if low != high:
                return None
            plan.factors[level] = low
        return torch.tensor(plan.factors[:depth])


@lru_cache(maxsize=8)
def native(loops: ctypes.CDLL) -> NativeStatistics:
    """Those of a library, made once."""
    return NativeStatistics(loops)
