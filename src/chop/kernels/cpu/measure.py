"""Scales and thresholds that are measured before the pass that rounds."""

from __future__ import annotations

import ctypes
import math
from ctypes import byref, c_double, c_float, c_int64, c_void_p

import torch
from torch import Tensor

from chop.formats import BinaryResidual, NumberFormat, ScaleInteger, Ternary
from chop.formats.binary import Binary, mean_magnitude
from chop.formats.learnt import LearnableFormat, given
from chop.formats.scaled import ScaledFormat
from chop.formats.scaling import GivenScale, Scales
from chop.kernels.plan import EVERY_MAGNITUDE, Plan, measures_mean

EVERYTHING = -1.0
"""Below every magnitude."""
UNIT_ROUNDOFF = 2.0**-53
HALF = -1
"""The rank of the lower median."""


def pointer(x: Tensor | None) -> c_void_p:
    """Where a tensor's memory begins; null for None."""
    return c_void_p(None if x is None else x.data_ptr())


def given_scales(
    loops: ctypes.CDLL, plan: Plan, lines: Tensor, number_format: NumberFormat
) -> Tensor:
    """float64, (lines, 1): the scale of each line."""
    if has_scales(number_format):
        return _own(lines, number_format)
    if isinstance(number_format, Binary):
        return mean_magnitudes(loops, lines.float(), EVERYTHING)
    assert isinstance(number_format, ScaleInteger)
    covered = _covered(loops, plan, lines.float(), number_format.quantile)
    return number_format.scaling.measure(covered.double()).values


def has_scales(number_format: NumberFormat) -> bool:
    """Whether a format has scales of its own, which do not follow the data."""
    return isinstance(number_format, LearnableFormat) and number_format.scales is not None


def _own(lines: Tensor, number_format: NumberFormat) -> Tensor:
    assert isinstance(number_format, LearnableFormat) and number_format.scales is not None
    return GivenScale(given(number_format.scales, lines)).measure(lines).values


def with_tensor_scale(
    loops: ctypes.CDLL, plan: Plan, x: Tensor, number_format: ScaledFormat
) -> Plan:
    """The plan with the factor that all scales of this tensor share."""
    largest = _largest(loops, x.float().view(1, -1), plan.magnitude_mask)
    scales: Scales = number_format.scaling.measure(largest.double())
    assert scales.of_tensor is not None
    plan = Plan.from_buffer_copy(plan)
    plan.of_tensor = scales.of_tensor.item()
    return plan


def with_threshold(loops: ctypes.CDLL, plan: Plan, x: Tensor, number_format: Ternary) -> Plan:
    """The plan with this tensor's threshold."""
    plan = Plan.from_buffer_copy(plan)
    plan.low = _threshold(loops, x.float().view(1, -1), number_format)
    return plan


def ternary_scales(loops: ctypes.CDLL, plan: Plan, lines: Tensor, number_format: Ternary) -> Tensor:
    """float64, (lines, 1): what the values kept have in common."""
    if not number_format.scaling_factor:
        return lines.new_ones(lines.size(0), 1, dtype=torch.float64)
    if has_scales(number_format):
        return _own(lines, number_format)
    return mean_magnitudes(loops, lines.float(), plan.low)


def with_factors(
    loops: ctypes.CDLL, plan: Plan, x: Tensor, memory: Tensor, number_format: BinaryResidual
) -> Plan:
    """The plan with the factors of all levels.

    Args:
        loops: the library.
        plan: without them.
        x: the tensor.
        memory: its elements in the order of memory.
        number_format: says how many levels there are.
    """
    plan = Plan.from_buffer_copy(plan)
    plan.levels = number_format.levels if number_format.residual_sign else 1
    if number_format.scales is not None:
        factors = given(number_format.scales, x)
    else:
        measured = _factors(loops, plan, memory.float(), plan.levels)
        factors = number_format.encode(x).scales if measured is None else measured
    assert factors is not None
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


def mean_magnitudes(loops: ctypes.CDLL, lines: Tensor, above: float) -> Tensor:
    """The reference's means of finite magnitudes above a float32, rounded to float32.

    Sums depend on the order of their terms. Where the bounds of any order round to one float32,
    that is it; the few other lines are left to the reference.

    Args:
        loops: the library.
        lines: float32, (lines, elements).
        above: the magnitude.
    Returns: float64, (lines, 1).
    """
    low, high = _bounds(loops, lines, above)
    scales = low.float()
    open_lines = (scales != high.float()).squeeze(1)
    if open_lines.any():
        scales[open_lines] = reference_means(lines[open_lines], above).float()
    return scales.double()


def reference_means(lines: Tensor, above: float) -> Tensor:
    """float64, (lines, 1), in the reference's own order, as float32 rounds them."""
    exact = lines.double()
    return mean_magnitude(exact.masked_fill(exact.abs() <= above, torch.nan)).float().double()


def _threshold(loops: ctypes.CDLL, line: Tensor, number_format: Ternary) -> float:
    """The largest float32 not above the reference's threshold, which parts float32 alike."""
    if number_format.max is True:
        return _float_below(number_format.threshold_of(_largest(loops, line, EVERY_MAGNITUDE)))
    if number_format.median is True:
        median = _order_statistics(loops, line, EVERY_MAGNITUDE, HALF)
        return _float_below(number_format.threshold_of(median))
    if measures_mean(number_format):
        low, high = (_float_below(number_format.threshold_of(m)) for m in _bounds(loops, line))
        return low if low == high else _float_below(number_format.threshold_of(line))
    return _float_below(number_format.threshold_of(line.new_zeros(1)))


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


def _covered(loops: ctypes.CDLL, plan: Plan, lines: Tensor, quantile: float) -> Tensor:
    """float32, (lines, 1): the magnitudes that scales have to cover."""
    beyond = lines.size(1) - math.ceil(quantile * lines.size(1))
    if beyond == 0:
        return _largest(loops, lines, plan.magnitude_mask)
    return _order_statistics(loops, lines, plan.magnitude_mask, beyond)


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
