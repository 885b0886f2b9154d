"""`chop::fake_quantize` on CPUs, one pass over memory."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from chop.formats import NumberFormat
from chop.formats.groups import Blocks, Groups, Whole
from chop.formats.scaled import ScaledFormat
from chop.formats.ternary import CHANNELS, Ternary
from chop.kernels.base import Kernel, register
from chop.kernels.cpu.build import is_loaded, library
from chop.kernels.cpu.measure import given_scales, of_largest, ternary, with_tensor_scale
from chop.kernels.plan import GIVEN, NONE, SMALL_FLOAT, Plan, plan_of

# The enumeration of fake_quantize.cpp.
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
WORTH_COMPILING = 2**16
"""Elements of a tensor for which compiling, a matter of seconds, is begun."""


def run(x: Tensor, number_format: NumberFormat, out: Tensor) -> bool:
    """Rounds `x` into `out`; False where a format, dtype or compiler is not to be had."""
    if x.dtype not in TYPES or not x.numel():
        return False
    if not is_loaded() and x.numel() < WORTH_COMPILING:
        return False
    number_format = number_format.fitted(x)
    plan = plan_of(number_format, x.dtype)
    loops = library().library
    return plan is not None and loops is not None and _round(loops, plan, x, number_format, out)


def _round(
    loops: ctypes.CDLL, plan: Plan, x: Tensor, number_format: NumberFormat, out: Tensor
) -> bool:
    if plan.scale == NONE:
        return _in_memory_order(loops, plan, x, out)
    groups = _groups(number_format)
    lines = _lines(x, groups, whole_groups=plan.scale == GIVEN)
    is_split = lines is None
    source = (groups.split(x) if is_split else x).contiguous()
    if lines is None:
        # A vector has smaller groups than the format's, if those have two axes.
        plan = Plan.from_buffer_copy(plan)
        plan.block = 1 if plan.scale == GIVEN else source.size(-1)
        count = source.numel() // source.size(-1) if plan.scale == GIVEN else 1
        lines = count, source.numel() // count
    plan, scales = _measured(loops, plan, source.view(lines), number_format)
    in_place = not is_split and out.is_contiguous()
    target = out if in_place else torch.empty_like(source)
    if not _call(loops, plan, source, target, lines, scales):
        return False
    if not in_place:
        out.copy_(groups.join(target, x.shape) if is_split else target)
    return True


def _groups(number_format: NumberFormat) -> Groups:
    if isinstance(number_format, Ternary):
        return CHANNELS
    assert isinstance(number_format, ScaledFormat)
    return number_format.groups


def _measured(
    loops: ctypes.CDLL, plan: Plan, lines: Tensor, number_format: NumberFormat
) -> tuple[Plan, Tensor | None]:
    """The plan and the scales of lines, where they need a pass over the tensor of their own."""
    if isinstance(number_format, Ternary):
        return ternary(loops, plan, lines, number_format)
    if plan.scale == GIVEN:
        return plan, given_scales(loops, lines, number_format)
    if plan.scale == SMALL_FLOAT:
        assert isinstance(number_format, ScaledFormat)
        of_tensor = of_largest(loops, lines.view(1, -1), number_format)
        return with_tensor_scale(plan, of_tensor), None
    return plan, None


def _in_memory_order(loops: ctypes.CDLL, plan: Plan, x: Tensor, out: Tensor) -> bool:
    """Elements by themselves need no order: any layout without gaps is one line."""
    if x.stride() == out.stride() == torch.empty_like(x, device="meta").stride():
        return _call(loops, plan, x, out, (1, x.numel()), None)
    source = x.contiguous()
    target = torch.empty_like(source)
    done = _call(loops, plan, source, target, (1, x.numel()), None)
    if done:
        out.copy_(target)
    return done


def _lines(x: Tensor, groups: Groups, whole_groups: bool) -> tuple[int, int] | None:
    """(lines, line length) if groups lie one after the other in memory, else None.

    Args:
        x: the tensor; it is taken to be contiguous.
        groups: what shares a scale.
        whole_groups: a line has to be a group; else it may be several, the last one shorter.
    """
    count = groups.count(x.shape)
    if isinstance(groups, Whole):
        return count, x.numel() // count
    length = x.size(-1) if x.ndim else 1
    if not isinstance(groups, Blocks) or len(groups.sizes) > 1:
        return None
    if not groups.keep_rows_apart(max(x.ndim, 1)):
        return None
    if length % groups.sizes[0] == 0:
        return (count, groups.sizes[0]) if whole_groups else (1, x.numel())
    return None if whole_groups else (x.numel() // length, length)


def _call(
    loops: ctypes.CDLL,
    plan: Plan,
    x: Tensor,
    out: Tensor,
    lines: tuple[int, int],
    scales: Tensor | None,
) -> bool:
    """Whether the loops took it. ctypes lets other Python threads run meanwhile."""
    status = loops.chop_fake_quantize(
        ctypes.byref(plan),
        ctypes.c_void_p(x.data_ptr()),
        ctypes.c_void_p(out.data_ptr()),
        TYPES[x.dtype],
        *map(ctypes.c_int64, lines),
        ctypes.c_void_p(scales.data_ptr() if scales is not None else None),
        torch.get_num_threads(),
    )
    return status == 0


CPU_FAKE_QUANTIZE = register(Kernel("C++ fake-quantise", "cpu", run))
