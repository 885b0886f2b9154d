"""Scales and thresholds that are measured before the pass that rounds."""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from chop.formats import NumberFormat, Ternary
from chop.formats.binary import Binary, mean_magnitude
from chop.formats.learnt import LearnableFormat, given
from chop.formats.scaled import ScaledFormat
from chop.formats.scaling import GivenScale, Scales
from chop.kernels.plan import Plan, measures_mean

EVERYTHING = -1.0
"""Below every magnitude."""
UNIT_ROUNDOFF = 2.0**-53


def given_scales(loops: ctypes.CDLL, lines: Tensor, number_format: NumberFormat) -> Tensor:
    """float64, (lines, 1): the scale of each line."""
    scales = given_of(lines, number_format)
    if scales is not None:
        return scales
    if isinstance(number_format, Binary):
        return mean_magnitudes(loops, lines.float(), EVERYTHING)
    assert isinstance(number_format, ScaledFormat)
    return of_largest(loops, lines, number_format).values


def given_of(lines: Tensor, number_format: NumberFormat) -> Tensor | None:
    """float64, (lines, 1): the scales that a format has of its own, or None."""
    if not isinstance(number_format, LearnableFormat) or number_format.scales is None:
        return None
    return GivenScale(given(number_format.scales, lines)).measure(lines).values


def of_largest(loops: ctypes.CDLL, lines: Tensor, number_format: ScaledFormat) -> Scales:
    """The scales of lines, from their largest finite magnitudes."""
    return number_format.scaling.measure(_largest(loops, lines.float()).double())


def with_tensor_scale(plan: Plan, scales: Scales) -> Plan:
    """The plan with the factor that all scales of this tensor share."""
    assert scales.of_tensor is not None
    plan = Plan.from_buffer_copy(plan)
    plan.of_tensor = scales.of_tensor.item()
    return plan


def ternary(
    loops: ctypes.CDLL, plan: Plan, lines: Tensor, number_format: Ternary
) -> tuple[Plan, Tensor | None]:
    """The plan with this tensor's threshold, and float64 scales, (lines, 1), or None for ones."""
    exact = lines.float()
    plan = Plan.from_buffer_copy(plan)
    plan.low = _threshold(loops, exact.view(1, -1), number_format)
    if not number_format.scaling_factor:
        return plan, None
    scales = given_of(lines, number_format)
    if scales is not None:
        return plan, scales
    return plan, mean_magnitudes(loops, exact, plan.low)


def mean_magnitudes(loops: ctypes.CDLL, lines: Tensor, above: float) -> Tensor:
    """The reference's means of finite magnitudes above a float32, rounded to float32.

    Sums depend on the order of their terms. Where the bounds of any order round to one float32,
    that is it; the few other lines are left to the reference.

    Args:
        lines: float32, (lines, elements).
        above: the magnitude.
    Returns: float64, (lines, 1).
    """
    low, high = _bounds(loops, lines, above)
    scales = low.float()
    open_lines = (scales != high.float()).squeeze(1)
    if open_lines.any():
        exact = lines[open_lines].double()
        kept = exact.masked_fill(exact.abs() <= above, torch.nan)
        scales[open_lines] = mean_magnitude(kept).float()
    return scales.double()


def _threshold(loops: ctypes.CDLL, line: Tensor, number_format: Ternary) -> float:
    """The largest float32 not above the reference's threshold, which parts float32 alike."""
    if number_format.max is True:
        return _float_below(number_format.threshold_of(_largest(loops, line)))
    if measures_mean(number_format):
        low, high = (_float_below(number_format.threshold_of(m)) for m in _bounds(loops, line))
        return low if low == high else _float_below(number_format.threshold_of(line))
    return _float_below(number_format.threshold_of(line.new_zeros(1)))


def _bounds(loops: ctypes.CDLL, lines: Tensor, above: float = EVERYTHING) -> tuple[Tensor, Tensor]:
    """Two float64 bounds, (lines, 1), of the mean that this sum and the reference's can give.

    Both add partial sums, so that far fewer than 8 sqrt(n) additions follow one another.
    Source: Higham 2002, Accuracy and Stability of Numerical Algorithms, section 4.2: a sum of
    terms of one sign is off by less than a unit roundoff for each addition in a chain.
    """
    sums, counts = lines.new_empty(2, lines.size(0), 1, dtype=torch.float64)
    loops.chop_sums(
        ctypes.c_void_p(lines.data_ptr()),
        ctypes.c_float(above),
        ctypes.c_void_p(sums.data_ptr()),
        ctypes.c_void_p(counts.data_ptr()),
        *map(ctypes.c_int64, lines.shape),
        torch.get_num_threads(),
    )
    mean = sums / counts.clamp(min=1)
    # Twice, for this sum and the reference's; a few more for the quotients.
    slack = mean * (2 * 8 * math.sqrt(lines.size(1)) + 8) * UNIT_ROUNDOFF
    return mean - slack, mean + slack


def _float_below(number: float) -> float:
    nearest = torch.tensor(number, dtype=torch.float32, device="cpu")
    if nearest.double() > number:
        nearest = nearest.nextafter(torch.tensor(-torch.inf, device="cpu"))
    return nearest.item()


def _largest(loops: ctypes.CDLL, lines: Tensor) -> Tensor:
    """float32, (lines, 1): the largest finite magnitudes of float32 lines."""
    largest = torch.empty(lines.size(0), 1)
    loops.chop_largest(
        ctypes.c_void_p(lines.data_ptr()),
        ctypes.c_void_p(largest.data_ptr()),
        *map(ctypes.c_int64, lines.shape),
        torch.get_num_threads(),
    )
    return largest
