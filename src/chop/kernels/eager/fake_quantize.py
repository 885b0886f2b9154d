"""Fake-quantise in PyTorch alone: few operations, on chunks that stay in the caches.

The results are those of the readable reference, bit for bit, at a fraction of its cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from chop.formats import NumberFormat
from chop.formats.groups import Groups, Whole
from chop.formats.layout import Layout
from chop.formats.scaling import KnownScale, ScaledFloatScale
from chop.kernels.eager.chunked import FLOAT32, FLOAT64, Buffers, line_chunks, pairs
from chop.kernels.eager.cores import Core, FixedCore, core_of, magic_number
from chop.kernels.eager.grids import (
    elements,
    magnitudes_of,
    round_scaled,
    shared_exponents,
    two_levels,
)
from chop.kernels.eager.measure import largest_of, scales_of_lines, with_threshold
from chop.kernels.eager.memory import prefer_huge_pages
from chop.kernels.eager.residual import level_scales, round_residual
from chop.kernels.eager.scales import Scale
from chop.kernels.eager.signs import round_integers, round_signs, round_ternary
from chop.kernels.plan import (
    INTEGER_FLOAT32,
    INTEGER_FLOAT64,
    NONE,
    SHARED_EXPONENT,
    SIGN,
    SMALL_FLOAT,
    TERNARY,
    Plan,
    layout_of,
    plan_of,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

Work = Callable[[Tensor, Tensor, Buffers], None]
"""(x, out, buffers): rounds a float32 chunk into another, which may be the same."""
WorkByScale = Callable[[Tensor, Tensor, Buffers, Tensor], None]
"""The same, with the scales of the chunk's lines."""


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
    layout = with_threshold(layout.by(scales), x)
    if layout.levels is not None:
        return _round_levels(x, layout, plan, out)
    if layout.scaling is None or plan.scale == NONE:
        return _round_elements(x, layout, plan, out)
    grid = _grid_of(x, layout, plan)
    if grid is None:
        return _round_lines(x, layout, plan, out)
    _in_groups(x, out, layout.groups, partial(_each, grid))
    return True


def _round_elements(x: Tensor, layout: Layout, plan: Plan, out: Tensor) -> bool:
    work: Work | None
    if plan.core in (INTEGER_FLOAT32, INTEGER_FLOAT64):
        work = _integers(plan)
    elif plan.core == SIGN:
        one = torch.ones((), device=x.device)
        work = partial(round_signs, scale=one, is_bipolar=plan.low < 0)
    elif plan.core == TERNARY:
        work = partial(round_ternary, threshold=layout.element.threshold, scale=None)  # type: ignore[attr-defined]
    else:
        work = elements(plan)
    if work is None:
        return False
    _in_memory_order(x, out, partial(_each, work))
    return True


def _integers(plan: Plan) -> Work:
    low, high, step = plan.low, plan.high, plan.step
    is_narrow = max(-low, high) <= 2 ** (FLOAT32.fraction_bits - 1)
    in_float32 = is_narrow and magic_number(FLOAT32, step) < torch.finfo(torch.float32).max
    core = FixedCore(FLOAT32 if in_float32 else FLOAT64, step, low * step, high * step, False)
    return partial(round_integers, core=core, floors=bool(plan.floors))


def _grid_of(x: Tensor, layout: Layout, plan: Plan) -> Work | None:
    """Grids that find the scales of blocks themselves; None for other elements or scales."""
    if plan.scale == SHARED_EXPONENT:
        return shared_exponents(plan)
    if plan.scale != SMALL_FLOAT:
        return None
    assert isinstance(layout.scaling, ScaledFloatScale)
    of_tensor = layout.scaling.scales(largest_of(x.reshape(1, -1)).double()).of_tensor
    assert of_tensor is not None
    return two_levels(plan, of_tensor.item())


def _round_lines(x: Tensor, layout: Layout, plan: Plan, out: Tensor) -> bool:
    """By the scales of lines, which are measured before."""
    work = _work_by_scale(layout, plan)
    is_negative = isinstance(layout.scaling, KnownScale) and bool(
        layout.scaling.known(x.device).signbit().any()
    )
    if work is None or (is_negative and not _takes_negative_scales(plan)):
        return False

    def run(lines: Tensor, target: Tensor) -> None:
        _each_by_scale(work, lines, target, scales_of_lines(lines, layout))

    _in_groups(x, out, layout.groups, run)
    return True


def _takes_negative_scales(plan: Plan) -> bool:
    core = core_of(plan, FLOAT64)
    return core is not None and not core.of_magnitudes


def _work_by_scale(layout: Layout, plan: Plan) -> WorkByScale | None:
    if plan.core == SIGN:
        return partial(_round_signs, is_bipolar=plan.low < 0)
    if plan.core == TERNARY:
        return partial(_round_ternary, threshold=layout.element.threshold)  # type: ignore[attr-defined]
    core = core_of(plan, FLOAT64)
    return None if core is None else partial(_divide, core=core, limit=plan.limit)


def _round_signs(x: Tensor, out: Tensor, buffers: Buffers, scale: Tensor, is_bipolar: bool) -> None:
    round_signs(x, out, buffers, scale.float(), is_bipolar)


def _round_ternary(
    x: Tensor, out: Tensor, buffers: Buffers, scale: Tensor, threshold: float
) -> None:
    round_ternary(x, out, buffers, threshold, scale.float())


def _divide(
    x: Tensor, out: Tensor, buffers: Buffers, scale: Tensor, core: Core, limit: float
) -> None:
    if scale.abs().amax().item() * core.largest <= limit:
        limit = math.inf
    if core.of_magnitudes:
        magnitudes_of(x, core.real, buffers)
    divisor = scale.masked_fill(scale == 0, 1.0)
    round_scaled(core, Scale(None, divisor, scale), x, out, buffers, limit)


def _round_levels(x: Tensor, layout: Layout, plan: Plan, out: Tensor) -> bool:
    known = layout.scaling.known(x.device) if isinstance(layout.scaling, KnownScale) else None
    if known is not None and known.signbit().any():
        return False

    def run(lines: Tensor, target: Tensor) -> None:
        line = lines.view(-1)
        scales = level_scales(line, layout, plan.low < 0)
        limit = plan.limit if sum(scales).item() > plan.limit else math.inf
        if len(scales) <= 2:
            scales = [scale.float() for scale in scales]
        work = partial(round_residual, scales=scales, is_bipolar=plan.low < 0, limit=limit)
        _each(work, line, target.view(-1))

    _in_groups(x, out, Whole("tensor"), run)
    return True


def _each(work: Work, x: Tensor, out: Tensor) -> None:
    """Does the work on all chunks of two tensors of one shape, in float32."""
    for part, out_part, buffers in pairs(x, out):
        _in_float32(work, part, out_part, buffers)


def _each_by_scale(work: WorkByScale, lines: Tensor, out: Tensor, scales: Tensor) -> None:
    """Does the work on all chunks of lines with the scales that belong to them."""
    for (part, out_part, scale), buffers in line_chunks(lines, out, scales):
        _in_float32(partial(work, scale=scale), part, out_part, buffers)


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
        _in_groups(x, out, Whole("tensor"), lambda x, out: run(x.view(-1), out.view(-1)))


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
    grid = groups.grid(x.shape)
    if grid is None or grid.block_rows > 1 or grid.columns % grid.block_columns:
        return None
    return grid.block_columns
