"""Fake-quantize in PyTorch alone: few operations, on chunks that stay in the caches.

The results are those of the readable reference, bit for bit, at a fraction of its cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from chop.formats import NumberFormat
from chop.formats.groups import WHOLE_TENSOR, Groups
from chop.formats.layout import Layout
from chop.formats.scaling import SharedExponent, StaticScale
from chop.kernels.eager.chunked import FLOAT32, FLOAT64, Buffers, line_chunks, pairs
from chop.kernels.eager.levels import factors_of_levels, round_levels
from chop.kernels.eager.measure import EagerStatistics
from chop.kernels.eager.memory import prefer_huge_pages
from chop.kernels.eager.rounders import FixedRounder, exact_in_float32, magic_number, rounder_of
from chop.kernels.eager.rounding import have_inverses, round_alone, round_scaled
from chop.kernels.eager.signs import round_integers, round_signs, round_ternary
from chop.kernels.plan import (
    INTEGER_FLOAT32,
    INTEGER_FLOAT64,
    NONE,
    SIGN,
    TERNARY,
    LoopParameters,
    layout_of,
    plan_of,
)

STATISTICS = EagerStatistics()

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

Work = Callable[[Tensor, Tensor, Buffers], None]
"""(x, out, buffers): rounds a float32 chunk into another, which may be the same."""


class WorkByScale(Protocol):
    """The same, with the scales of the chunk's lines."""

    def __call__(self, x: Tensor, out: Tensor, buffers: Buffers, /, *, scale: Tensor) -> None:
        """Rounds a chunk."""


def round_eagerly(
    x: Tensor, number_format: NumberFormat, out: Tensor, scales: Tensor | None = None
) -> bool:
    """Writes what the reference gives for `x` to `out`; False where something is not served.

    Args:
        x: any shape and device.
        number_format: the format.
        out: like `x`; may be `x`.
        scales: float32 (n,), instead of those of the format's layout; or None.
    """
    if x.dtype not in DTYPES or not x.numel():
        return False
    number_format = number_format.fitted(x)
    plan = plan_of(number_format, x.dtype, scales is not None)
    layout = layout_of(number_format)
    if plan is None or layout is None:
        return False
    prefer_huge_pages(out)
    layout = STATISTICS.fitted(layout.with_scales(scales), x)
    if _has_negative_scales(layout, plan):
        return False
    if layout.levels is not None:
        return _round_levels(x, layout, plan, out)
    if layout.scaling is None or plan.scale == NONE:
        return _round_elements(x, layout, plan, out)
    return _round_lines(x, layout, plan, out)


def _has_negative_scales(layout: Layout, plan: LoopParameters) -> bool:
    """True where the signs of values, which are given back, would not be the results'."""
    if not isinstance(layout.scaling, StaticScale):
        return False
    rounder = rounder_of(plan, FLOAT64)
    takes_signs = rounder is not None and not rounder.of_magnitudes
    return not takes_signs and bool(layout.scaling.known(torch.device("cpu")).signbit().any())


def _round_elements(x: Tensor, layout: Layout, plan: LoopParameters, out: Tensor) -> bool:
    work = _work_alone(layout, plan, x.device)
    if work is None:
        return False
    _in_memory_order(x, out, partial(_each, work))
    return True


def _work_alone(layout: Layout, plan: LoopParameters, device: torch.device) -> Work | None:
    if plan.core in (INTEGER_FLOAT32, INTEGER_FLOAT64):
        return _integers(plan)
    if plan.core == SIGN:
        one = torch.ones((), device=device)
        return partial(round_signs, scale=one, is_bipolar=plan.low < 0)
    if plan.core == TERNARY:
        return partial(round_ternary, threshold=_threshold(layout), scale=None)
    rounder = rounder_of(plan, FLOAT32)
    if rounder is None or not exact_in_float32(rounder, is_scaled=False):
        rounder = rounder_of(plan, FLOAT64)
    if rounder is None:
        return None
    limit = plan.limit if rounder.largest > plan.limit else math.inf
    return partial(round_alone, rounder=rounder, limit=limit)


def _integers(plan: LoopParameters) -> Work:
    low, high, step = plan.low, plan.high, plan.step
    is_narrow = max(-low, high) <= 2 ** (FLOAT32.fraction_bits - 1)
    in_float32 = is_narrow and magic_number(FLOAT32, step) < torch.finfo(torch.float32).max
    rounder = FixedRounder(FLOAT32 if in_float32 else FLOAT64, step, low * step, high * step, False)
    return partial(round_integers, rounder=rounder, floors=bool(plan.floors))


def _threshold(layout: Layout) -> float:
    threshold = layout.element.threshold
    assert isinstance(threshold, float)
    return threshold


def _round_lines(x: Tensor, layout: Layout, plan: LoopParameters, out: Tensor) -> bool:
    """By the scales of lines, which are measured before."""
    if not _is_scalable(layout, plan):
        return False

    def run(lines: Tensor, target: Tensor) -> None:
        scales = STATISTICS.scales(lines, layout)
        work, scales = _work_by_scale(layout, plan, scales)
        for (part, out_part, scale), buffers in line_chunks(lines, target, scales):
            _in_float32(partial(work, scale=scale), part, out_part, buffers)

    _in_groups(x, out, layout.groups, run)
    return True


def _is_scalable(layout: Layout, plan: LoopParameters) -> bool:
    if plan.core in (SIGN, TERNARY):  # by a float32 scale
        return bool(plan.limit < math.inf)
    rounder = rounder_of(plan, FLOAT64)
    if rounder is None:
        return False
    # A scale of zero keeps the signs of elements, but for those of zero.
    is_never_zero = isinstance(layout.scaling, SharedExponent)
    return is_never_zero or rounder.has_negative_zero or not rounder.of_magnitudes


def _work_by_scale(
    layout: Layout, plan: LoopParameters, scales: Tensor
) -> tuple[WorkByScale, Tensor]:
    """The work on chunks of lines, and the scales in its dtype."""
    if plan.core in (SIGN, TERNARY):
        scales = scales.clamp(-plan.limit, plan.limit).float()
    if plan.core == SIGN:
        return partial(round_signs, is_bipolar=plan.low < 0), scales
    if plan.core == TERNARY:
        return partial(round_ternary, threshold=_threshold(layout)), scales
    rounder = rounder_of(plan, FLOAT32)
    is_exact = type(layout.scaling) is SharedExponent and have_inverses(scales)
    if rounder is None or not (is_exact and exact_in_float32(rounder, is_scaled=True)):
        rounder = rounder_of(plan, FLOAT64)
    assert rounder is not None
    reaches = scales.nan_to_num(nan=0.0).abs().amax().item() * rounder.largest
    limit = plan.limit if reaches > plan.limit else math.inf
    work = partial(round_scaled, rounder=rounder, limit=limit, is_power=is_exact)
    return work, scales.to(rounder.real.dtype)


def _round_levels(x: Tensor, layout: Layout, plan: LoopParameters, out: Tensor) -> bool:
    def run(lines: Tensor, target: Tensor) -> None:
        line = lines.view(-1)
        scales = factors_of_levels(line, layout, plan.low < 0)
        limit = plan.limit if float(sum(scales)) > plan.limit else math.inf
        if len(scales) <= 2:
            scales = [scale.float() for scale in scales]
        work = partial(round_levels, scales=scales, is_bipolar=plan.low < 0, limit=limit)
        _each(work, line, target.view(-1))

    _in_groups(x, out, WHOLE_TENSOR, run)
    return True


def _each(work: Work, x: Tensor, out: Tensor) -> None:
    """Does the work on all chunks of two tensors of one shape, in float32."""
    for part, out_part, buffers in pairs(x, out):
        _in_float32(work, part, out_part, buffers)


def _in_float32(work: Work, x: Tensor, out: Tensor, buffers: Buffers) -> None:
    if x.dtype == torch.float32:
        work(x, out, buffers)
    else:
        exact = buffers.get("exact", torch.float32, x.shape).copy_(x)
        work(exact, exact, buffers)
        out.copy_(exact)


Run = Callable[[Tensor, Tensor], None]
"""Rounds a tensor into another of the same shape, both contiguous; they may be the same."""


def _in_memory_order(x: Tensor, out: Tensor, run: Run) -> None:
    """Elements by themselves need no order: any layout without gaps is one line."""
    if x.stride() == out.stride() == torch.empty_like(x, device="meta").stride():
        line = (x.numel(),), (1,)
        run(x.as_strided(*line), out.as_strided(*line))
    else:
        _in_groups(x, out, WHOLE_TENSOR, lambda x, out: run(x.view(-1), out.view(-1)))


def _in_groups(x: Tensor, out: Tensor, groups: Groups, run: Run) -> None:
    """Runs on (groups, elements), without copies where groups lie one after the other."""
    size = _group_size(x, groups)
    if size is not None:
        split = x.contiguous().view(-1, size)
        if out.is_contiguous():
            run(split, out.view(-1, size))
            return
    else:
        split = groups.split(x).contiguous()
    lines = split.view(-1, split.size(-1))
    is_copy = lines.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    target = lines if is_copy else torch.empty_like(lines)
    run(lines, target)
    out.copy_(target.view(x.shape) if size else groups.join(target.view(split.shape), x.shape))


def _group_size(x: Tensor, groups: Groups) -> int | None:
    """Elements of a group if all have as many, one after the other in a contiguous tensor."""
    tiling = groups.tiling(x.shape)
    if tiling is None or tiling.block_rows > 1 or tiling.columns % tiling.block_columns:
        return None
    return tiling.block_columns
