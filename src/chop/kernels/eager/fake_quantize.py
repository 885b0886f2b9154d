"""Fake-quantise in PyTorch alone: few operations, on chunks that stay in the caches.

The results are those of `NumberFormat.round`, bit for bit, at a fraction of its cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from chop.formats import Binary, BinaryResidual, Integer, NumberFormat, ScaleInteger, Ternary
from chop.formats.groups import Groups, Whole
from chop.formats.scaled import ScaledFormat
from chop.formats.scaling import FloatScale, GivenScale, ScaledFloatScale, SharedExponent, Unscaled
from chop.formats.ternary import CHANNELS
from chop.kernels.eager.chunked import FLOAT32, FLOAT64, Buffers, line_chunks, pairs
from chop.kernels.eager.cores import Core, FixedCore, core_of, magic_number
from chop.kernels.eager.grids import elements, round_scaled, shared_exponents, two_levels
from chop.kernels.eager.measure import largest_of, scales_of_lines, threshold_of
from chop.kernels.eager.memory import prefer_huge_pages
from chop.kernels.eager.residual import level_scales, round_residual
from chop.kernels.eager.scales import Scale
from chop.kernels.eager.signs import round_integers, round_signs, round_ternary
from chop.kernels.plan import SIGN, Plan, plan_of

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

Work = Callable[[Tensor, Tensor, Buffers], None]
"""(x, out, buffers): rounds a float32 chunk into another, which may be the same."""
WorkByScale = Callable[[Tensor, Tensor, Buffers, Tensor], None]
"""The same, with the scales of the chunk's lines."""


def round_eagerly(x: Tensor, number_format: NumberFormat, out: Tensor) -> bool:
    """Writes `number_format.round(x)` to `out`; False where a format or dtype is not served.

    Args:
        x: any shape and device.
        number_format: the format.
        out: like `x`; may be `x`.
    """
    if x.dtype not in DTYPES or not x.numel():
        return False
    number_format = number_format.fitted(x)
    plan = plan_of(number_format, x.dtype)
    if plan is None:
        return False
    prefer_huge_pages(out)
    if isinstance(number_format, Ternary):
        return _round_ternary(x, number_format, out)
    if isinstance(number_format, BinaryResidual):
        return _round_residual(x, number_format, plan, out)
    if isinstance(number_format, ScaledFormat):
        return _round_scaled_format(x, number_format, plan, out)
    return _round_elements(x, number_format, plan, out)


def _round_elements(x: Tensor, number_format: NumberFormat, plan: Plan, out: Tensor) -> bool:
    work: Work | None
    if isinstance(number_format, Integer):
        work = _integers(number_format)
    elif plan.core == SIGN:
        one = torch.ones((), device=x.device)
        work = partial(round_signs, scale=one, is_bipolar=plan.low < 0)
    else:
        work = elements(plan)
    if work is None:
        return False
    _in_memory_order(x, out, partial(_each, work))
    return True


def _integers(number_format: Integer) -> Work | None:
    step = 2.0**-number_format.frac_width  # type: ignore[operator]
    low, high = number_format.code_range
    # The reference multiplies by 1/step in float32, where small numbers may vanish: they round
    # to zero then, down too.
    if number_format.floor and step > 1:
        return None
    is_narrow = max(-low, high) <= 2 ** (FLOAT32.fraction_bits - 1)
    in_float32 = is_narrow and magic_number(FLOAT32, step) < torch.finfo(torch.float32).max
    core = FixedCore(FLOAT32 if in_float32 else FLOAT64, step, low * step, high * step, False)
    return partial(round_integers, core=core, floors=number_format.floor)


def _round_scaled_format(x: Tensor, number_format: ScaledFormat, plan: Plan, out: Tensor) -> bool:
    scaling = number_format.scaling
    if isinstance(scaling, Unscaled):
        return _round_elements(x, number_format, plan, out)
    if isinstance(scaling, FloatScale | GivenScale):
        return _round_lines(x, number_format, plan, out)
    if isinstance(scaling, ScaledFloatScale):
        of_tensor = scaling.measure(largest_of(x.reshape(1, -1)).double()).of_tensor
        assert of_tensor is not None
        grid = two_levels(plan, of_tensor.item())
    else:
        grid = shared_exponents(plan) if isinstance(scaling, SharedExponent) else None
    if grid is None:
        return False
    _in_groups(x, out, number_format.groups, partial(_each, grid))
    return True


def _round_lines(x: Tensor, number_format: ScaledFormat, plan: Plan, out: Tensor) -> bool:
    """Formats whose lines have a float scale each."""
    run: Run
    if isinstance(number_format, Binary):
        if any(math.copysign(1.0, scale) < 0 for scale in number_format.scales or ()):
            return False
        run = partial(_sign_lines, number_format=number_format)
    elif isinstance(number_format, ScaleInteger):
        core = core_of(plan, FLOAT64)
        assert core is not None
        run = partial(_divide_lines, number_format=number_format, core=core, limit=plan.limit)
    else:
        return False
    _in_groups(x, out, number_format.groups, run)
    return True


def _sign_lines(lines: Tensor, out: Tensor, number_format: Binary) -> None:
    scales = scales_of_lines(lines, number_format).float()
    work = partial(round_signs, is_bipolar=number_format.bipolar)
    _each_by_scale(work, lines, out, scales)


def _divide_lines(
    lines: Tensor, out: Tensor, number_format: ScaleInteger, core: Core, limit: float
) -> None:
    scales = scales_of_lines(lines, number_format)
    if scales.abs().amax().item() * core.largest <= limit:
        limit = math.inf

    def work(x: Tensor, out: Tensor, buffers: Buffers, scale: Tensor) -> None:
        divisor = scale.masked_fill(scale == 0, 1.0)
        round_scaled(core, Scale(None, divisor, scale), x, out, buffers, limit)

    _each_by_scale(work, lines, out, scales)


def _round_ternary(x: Tensor, number_format: Ternary, out: Tensor) -> bool:
    threshold = threshold_of(x, number_format)
    if not threshold >= 0:
        return False
    work = partial(round_ternary, threshold=threshold)
    if not number_format.scaling_factor:
        _in_memory_order(x, out, partial(_each, partial(work, scale=None)))
        return True

    def run(lines: Tensor, target: Tensor) -> None:
        scales = scales_of_lines(lines, number_format, above=threshold).float()
        _each_by_scale(work, lines, target, scales)

    _in_groups(x, out, CHANNELS, run)
    return True


def _round_residual(x: Tensor, number_format: BinaryResidual, plan: Plan, out: Tensor) -> bool:
    if any(math.copysign(1.0, scale) < 0 for scale in number_format.scales or ()):
        return False

    def run(lines: Tensor, target: Tensor) -> None:
        line = lines.view(-1)
        scales = level_scales(line, number_format)
        limit = plan.limit if sum(scales).item() > plan.limit else math.inf
        if len(scales) <= 2:
            scales = [scale.float() for scale in scales]
        is_bipolar = number_format.bipolar
        work = partial(round_residual, scales=scales, is_bipolar=is_bipolar, limit=limit)
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
