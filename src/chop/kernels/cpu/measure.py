"""Scales and thresholds that are measured before the pass that rounds."""

from __future__ import annotations

import ctypes
import dataclasses
import math
from ctypes import byref, c_double, c_float, c_int64, c_void_p

import torch
from torch import Tensor

from chop.formats import reference
from chop.formats.elements import Element, Trit
from chop.formats.layout import Layout
from chop.formats.scaling import KnownScale, ScaledFloatScale, is_poisoned
from chop.formats.statistic import Statistic, Threshold
from chop.kernels.plan import EVERY_BIT, EVERY_MAGNITUDE, SMALL_FLOAT, TERNARY, UNIT_ROUNDOFF, Plan

EVERYTHING = -1.0
"""Below every magnitude."""
HALF = -1
"""The rank of the lower median."""


def pointer(x: Tensor | None) -> c_void_p:
    """Where a tensor's memory begins; null for None."""
    return c_void_p(None if x is None else x.data_ptr())


def of_tensor(loops: ctypes.CDLL, plan: Plan, x: Tensor, layout: Layout) -> tuple[Plan, Layout]:
    """A plan to be changed, with what has to be known of the whole tensor; the layout as well."""
    plan = Plan.from_buffer_copy(plan)
    plan.roundoff = UNIT_ROUNDOFF
    if plan.core == TERNARY:
        element = layout.element
        assert isinstance(element, Trit)
        plan.low = _threshold(loops, x.float().view(1, -1), element.threshold)
        layout = dataclasses.replace(
            layout, element=dataclasses.replace(element, threshold=plan.low)
        )
    if plan.scale == SMALL_FLOAT:
        assert isinstance(layout.scaling, ScaledFloatScale)
        largest = _largest(loops, x.float().view(1, -1), plan.magnitude_mask)
        of_all = layout.scaling.scales(largest.double()).of_tensor
        assert of_all is not None
        plan.of_tensor = of_all.item()
    return plan, layout


def scales_of_lines(loops: ctypes.CDLL, plan: Plan, lines: Tensor, layout: Layout) -> Tensor:
    """float64, (lines, 1): the reference's scale of each line, a whole group.

    Args:
        loops: the library.
        plan: with the threshold, where there is one.
        lines: floating, (lines, elements).
        layout: fitted.
    """
    scaling = layout.scaling
    if scaling is None:
        return lines.new_ones(lines.size(0), 1, dtype=torch.float64)
    if isinstance(scaling, KnownScale):
        return scaling.measure(lines).values
    statistic = scaling.statistic
    if statistic is None or type(layout.element).measured not in (Element.measured, Trit.measured):
        return by_reference(lines, layout)
    exact = lines.float()
    poisoned = is_poisoned(exact) if scaling.has_nan else None
    if statistic.kind == "largest":
        return scaling.scales(_covered(loops, exact, statistic).double(), poisoned).values
    above = plan.low if plan.core == TERNARY else EVERYTHING
    low, high = (scaling.scales(bound, poisoned).values for bound in _bounds(loops, exact, above))
    # Sums depend on the order of their terms. Where the bounds of any order have one scale, that
    # is it; the few other lines are left to the reference.
    is_open = (low != high).squeeze(1)
    if is_open.any():
        low[is_open] = by_reference(lines[is_open], layout)
    return low


def by_reference(lines: Tensor, layout: Layout) -> Tensor:
    """float64, (lines, 1): scales in the reference's own order."""
    assert layout.scaling is not None
    return layout.scaling.measure(layout.element.measured(lines.double())).values


def with_factors(loops: ctypes.CDLL, plan: Plan, x: Tensor, memory: Tensor, layout: Layout) -> Plan:
    """The plan with the factors of all levels.

    Args:
        loops: the library.
        plan: without them.
        x: the tensor.
        memory: its elements in the order of memory.
        layout: says how many levels there are.
    """
    plan = Plan.from_buffer_copy(plan)
    assert layout.levels is not None
    plan.levels = layout.levels
    if isinstance(layout.scaling, KnownScale):
        factors = layout.scaling.known(x.device)
    else:
        measured = _factors(loops, plan, memory.float(), plan.levels)
        factors = reference.scales_of_levels(layout, x) if measured is None else measured
    plan.factors[: plan.levels] = factors.double().tolist()
    # The sum as the reference has it, rounded down: that parts float32 alike.
    plan.kept_high = _float_below(factors.double().sum().item())
    plan.kept_low = -plan.kept_high
    return plan


def _factors(loops: ctypes.CDLL, plan: Plan, memory: Tensor, depth: int) -> Tensor | None:
    """float32 (depth,): means of what the levels before leave; None where one is not certain."""
    plan = Plan.from_buffer_copy(plan)
    bounds = torch.empty(2, dtype=torch.float64)
    for level in range(depth):
        plan.levels = level
        loops.chop_mean_of_rests(
            byref(plan),
            pointer(memory),
            pointer(bounds[0]),
            pointer(bounds[1]),
            c_double(UNIT_ROUNDOFF),
            c_int64(memory.numel()),
            torch.get_num_threads(),
        )
        low, high = bounds.float().tolist()
        if low != high:
            return None
        plan.factors[level] = low
    return torch.tensor(plan.factors[:depth])


def _threshold(loops: ctypes.CDLL, line: Tensor, threshold: Threshold | float) -> float:
    """The largest float32 not above the reference's threshold, which parts float32 alike."""
    if isinstance(threshold, float):
        return _float_below(threshold)
    if threshold.kind == "largest":
        return _float_below(threshold.factor * _largest(loops, line, EVERY_MAGNITUDE).item())
    if threshold.kind == "median":
        median = _order_statistics(loops, line, EVERY_MAGNITUDE, HALF)
        return _float_below(threshold.factor * median.item())
    low, high = (_float_below(threshold.factor * mean.item()) for mean in _bounds(loops, line))
    return low if low == high else _float_below(threshold.of(line))


def _bounds(loops: ctypes.CDLL, lines: Tensor, above: float = EVERYTHING) -> tuple[Tensor, Tensor]:
    """Two float64 bounds, (lines, 1), of the mean that this sum and the reference's can give."""
    low, high = lines.new_empty(2, lines.size(0), 1, dtype=torch.float64)
    loops.chop_means(
        pointer(lines),
        c_float(above),
        pointer(low),
        pointer(high),
        c_double(UNIT_ROUNDOFF),
        *map(c_int64, lines.shape),
        torch.get_num_threads(),
    )
    return low, high


def _float_below(number: float) -> float:
    nearest = torch.tensor(number, dtype=torch.float32, device="cpu")
    if nearest.double() > number:
        nearest = nearest.nextafter(torch.tensor(-torch.inf, device="cpu"))
    return nearest.item()


def _covered(loops: ctypes.CDLL, lines: Tensor, statistic: Statistic) -> Tensor:
    """float32, (lines, 1): the magnitudes that scales have to cover."""
    mask = EVERY_MAGNITUDE if statistic.is_signed else EVERY_BIT
    beyond = lines.size(1) - math.ceil(statistic.quantile * lines.size(1))
    if beyond == 0:
        return _largest(loops, lines, mask)
    return _order_statistics(loops, lines, mask, beyond)


def _largest(loops: ctypes.CDLL, lines: Tensor, mask: int) -> Tensor:
    """float32, (lines, 1): the largest finite magnitudes of float32 lines."""
    largest = torch.empty(lines.size(0), 1)
    loops.chop_largest(
        pointer(lines),
        pointer(largest),
        mask,
        *map(c_int64, lines.shape),
        torch.get_num_threads(),
    )
    return largest


def _order_statistics(loops: ctypes.CDLL, lines: Tensor, mask: int, rank: int) -> Tensor:
    """float32, (lines, 1): the finite magnitudes with `rank` larger ones, or 0; or medians."""
    found = torch.empty(lines.size(0), 1)
    loops.chop_order_statistics(
        pointer(lines),
        pointer(found),
        mask,
        *map(c_int64, (rank, *lines.shape)),
        torch.get_num_threads(),
    )
    return found
