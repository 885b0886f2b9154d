"""`chop::fake_quantize` on CPUs, in one pass over memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from chop.formats import NumberFormat
from chop.formats.groups import CHANNELS, WHOLE_TENSOR, BlockTiling, Groups
from chop.formats.layout import Layout
from chop.formats.operators import OPERATORS
from chop.kernels.base import Kernel, Line, register
from chop.kernels.cpu import measure
from chop.kernels.cpu.build import is_loaded, is_ready, library
from chop.kernels.cpu.measure import pointer
from chop.kernels.measure import by_reference
from chop.kernels.plan import (
    GIVEN,
    LARGEST,
    MEAN,
    NONE,
    RESIDUAL,
    SMALL_FLOAT,
    TERNARY,
    UNIT_ROUNDOFF,
    LoopParameters,
    get_layout,
    get_plan,
    with_unsaturated_range,
)

# The enumeration of cpu/plan.h.
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
WORTH_COMPILING = 2**16
"""Elements of a tensor from which rounding starts the compilation, which takes seconds."""
STAYS_IN_CACHE = 2**16
"""Elements of a group that remain in the cache between measuring and rounding."""
MEASURED = (LARGEST, MEAN)
"""Scale kinds that read a group twice."""
WIDEST_BLOCK = 256
"""Largest number of columns of a block that spans several rows."""


class Tensors(NamedTuple):
    """Input and outputs of the loops.

    Attributes:
        x: input.
        out: rounded values, in the shape and dtype of `x`.
        mask: boolean saturation mask in the shape of `x`, or None.
    """

    x: Tensor
    out: Tensor
    mask: Tensor | None

    @property
    def results(self) -> list[Tensor]:
        """Output tensors."""
        return [self.out] if self.mask is None else [self.out, self.mask]

    def share_memory_order(self) -> bool:
        """Returns True if all tensors have the same dense memory layout."""
        x, out, mask = self
        if x.is_contiguous() and out.is_contiguous() and (mask is None or mask.is_contiguous()):
            return True
        dense = torch.empty_like(self.x, device="meta").stride()
        return all(tensor.stride() == dense for tensor in (self.x, *self.results))

    def contiguous(self) -> Tensors:
        """Returns contiguous tensors: these, or new ones."""
        x = self.x.contiguous()
        results = [
            t if t.is_contiguous() else torch.empty_like(x, dtype=t.dtype) for t in self.results
        ]
        return Tensors(x, results[0], None if self.mask is None else results[1])

    def split(self, groups: Groups) -> Tensors:
        """Returns new tensors with one row per group."""
        x = groups.split(self.x).contiguous()
        mask = None if self.mask is None else torch.empty_like(x, dtype=torch.bool)
        return Tensors(x, torch.empty_like(x), mask)

    def rows(self, index: Tensor, count: int) -> Tensors:
        """Returns new tensors with selected ones of `count` equal parts."""
        x = self.x.view(count, -1)[index]
        mask = None if self.mask is None else torch.empty_like(x, dtype=torch.bool)
        return Tensors(x, torch.empty_like(x), mask)

    def copy_to(self, others: Tensors) -> None:
        """Copies the results to other tensors unless they share memory."""
        for result, target in zip(self.results, others.results, strict=True):
            if result is not target:
                target.copy_(result)


def run(
    x: Tensor,
    number_format: NumberFormat,
    out: Tensor,
    mask: Tensor | None = None,
    scales: Tensor | None = None,
) -> bool:
    """Rounds `x` into `out`; returns False if the format or dtype is unsupported or not compiled.

    Args:
        x: floating-point tensor of any shape.
        number_format: number format to round to.
        out: tensor of the shape and dtype of `x`; may be `x`.
        mask: boolean tensor of the shape of `x` that receives `saturates(x)`, or None.
        scales: float32 (n,), used instead of the scales of the format's layout, or None.
    """
    if x.dtype not in TYPES or not x.numel():
        return False
    if not is_ready() and x.numel() < WORTH_COMPILING:
        return False
    loops = library().library
    if loops is None:
        return False
    line = get_line(number_format, x) if scales is None else None
    if line is not None and out.is_contiguous() and (mask is None or mask.is_contiguous()):
        marked = None if mask is None else mask.data_ptr()
        return line(x.data_ptr(), out.data_ptr(), x.numel(), marked) == 0
    number_format = number_format.fitted(x)
    if scales is not None and mask is None and x.is_contiguous() and out.is_contiguous():
        plan = plan_by_lines(number_format, x, scales)
        if plan is not None:
            return _round_by_lines(loops, plan, x, out, scales)
    plan = get_plan(number_format, x.dtype, scales is not None)
    layout = get_layout(number_format)
    if plan is None or layout is None:
        return False
    if mask is not None:
        plan = with_unsaturated_range(plan, layout)
    statistics = measure.native(loops)
    layout = statistics.fitted(layout.with_scales(scales), x)
    rounding = _Rounding(statistics, layout, Tensors(x, out, mask))
    return rounding.round_elements(plan) if plan.scale == NONE else rounding.round_groups(plan)


def plan_by_lines(number_format: NumberFormat, x: Tensor, scales: Tensor) -> LoopParameters | None:
    """Returns the plan by which the loops round `x` as one line per scale; None if they do not.

    Args:
        number_format: fitted format. Callers must not modify its plan.
        x: contiguous tensor.
        scales: scales given to `run`.
    """
    plan = get_plan(number_format, x.dtype, scales_are_known=True)
    layout = get_layout(number_format)
    # The threshold of ternary values depends on the tensor.
    if plan is None or layout is None or plan.scale != GIVEN or plan.core == TERNARY:
        return None
    is_by_line = layout.groups in (WHOLE_TENSOR, CHANNELS)
    return plan if is_by_line and layout.groups.count(x.shape) == scales.numel() else None


def _round_by_lines(
    loops: ctypes.CDLL, plan: LoopParameters, x: Tensor, out: Tensor, scales: Tensor
) -> bool:
    wide = scales.double().contiguous()
    lines, threads = wide.numel(), torch.get_num_threads()
    addresses = x.data_ptr(), out.data_ptr(), None, wide.data_ptr()
    sizes = TYPES[x.dtype], lines, x.numel() // lines
    return _lines_loop(loops)(byref(plan), *addresses, *sizes, threads) == 0


class _Rounding(NamedTuple):
    """Rounding of tensors by the library. Each method returns True on success."""

    statistics: measure.NativeStatistics
    layout: Layout
    tensors: Tensors

    def round_elements(self, plan: LoopParameters) -> bool:
        """Rounds elements independently: any dense layout is processed as one line."""
        tensors = self.tensors
        worked = tensors if tensors.share_memory_order() else tensors.contiguous()
        count = worked.x.numel()
        if self.layout.levels is not None:
            # Factors are means, with bounds for any order of summation, so memory order will do.
            memory = worked.x.as_strided((count,), (1,))
            plan = self.statistics.with_factors(plan, tensors.x, memory, self.layout)
        done = self._round_lines(plan, worked, (1, count), None)
        if worked is not tensors:
            worked.copy_to(tensors)
        return done

    def round_groups(self, plan: LoopParameters) -> bool:
        """Rounds groups with scales that the loops compute, or with scales measured beforehand."""
        # The loops compute scales in the same pass if the groups allow it. Otherwise scales are
        # measured first and given to them.
        if plan.scale != GIVEN and self._round_layout(plan):
            return True
        plan = LoopParameters.from_buffer_copy(plan)
        plan.scale = GIVEN
        return self._round_layout(plan)

    def _round_layout(self, plan: LoopParameters) -> bool:
        """Rounds groups in place if they are matrix blocks in memory; copies other groups first."""
        tensors, groups = self.tensors, self.layout.groups
        tiling = groups.tiling(tensors.x.shape)
        # A larger group has left the cache before it is read again, so one pass gains nothing.
        if tiling is not None and plan.scale in MEASURED and tiling.block_columns > STAYS_IN_CACHE:
            return False
        if tiling is not None and _lies_in_place(plan, tiling):
            worked = tensors.contiguous()
            done = self._round_tiled(plan, worked, tiling)
            if done:
                worked.copy_to(tensors)
            return done
        split = tensors.split(groups)
        size = split.x.size(-1)
        done = self._round_tiled(
            plan, split, BlockTiling(1, split.x.numel() // size, size, 1, size)
        )
        if not done:
            return False
        for result, target in zip(split.results, tensors.results, strict=True):
            target.copy_(groups.join(result, target.shape))
        return True

    def _round_tiled(self, plan: LoopParameters, worked: Tensors, tiling: BlockTiling) -> bool:
        plan, layout = self.complete_plan(plan, worked.x), self.layout
        plan.block = tiling.block_columns
        count, size = worked.x.numel(), tiling.block_columns
        if tiling.block_rows > 1:
            return self._round_matrices(plan, worked, tiling)
        if plan.scale == MEAN:
            return self._round_by_means(plan, layout, worked, (count // size, size))
        if plan.scale == GIVEN:
            plan.block, lines = 1, (count // size, size)
            scales = self.statistics.scales(worked.x.view(lines), layout)
            return self._round_lines(plan, worked, lines, scales)
        # Blocks that divide the columns cut the tensor as one line. Otherwise each row is a line
        # that ends with a shorter block.
        is_even = tiling.columns % size == 0
        lines = (1, count) if is_even else (count // tiling.columns, tiling.columns)
        return self._round_lines(plan, worked, lines, None)

    def complete_plan(self, plan: LoopParameters, x: Tensor) -> LoopParameters:
        """Returns a mutable plan with the values that depend on the whole tensor."""
        plan = LoopParameters.from_buffer_copy(plan)
        plan.roundoff = UNIT_ROUNDOFF
        if plan.core == TERNARY:
            plan.low = self.layout.element.threshold
        if plan.scale == SMALL_FLOAT:
            plan.tensor_scale = self.statistics.tensor_scale(x, self.layout)
        return plan

    def _round_by_means(
        self, plan: LoopParameters, layout: Layout, worked: Tensors, lines: tuple[int, int]
    ) -> bool:
        """Rounds with mean-based scales; lines with an uncertain mean get the reference's scale."""
        count, size = lines
        scales = torch.empty(count, 1, dtype=torch.float64)
        done = self._round_lines(plan, worked, (1, count * size), scales)
        is_open = scales.isnan().squeeze(1)
        if not done or not is_open.any():
            return done
        rest = worked.rows(is_open, count)
        plan.scale, plan.block = GIVEN, 1
        means = by_reference(rest.x, layout)
        done = self._round_lines(plan, rest, (means.numel(), size), means)
        for result, whole in zip(rest.results, worked.results, strict=True):
            whole.view(count, size)[is_open] = result
        return done

    def _round_lines(
        self, plan: LoopParameters, t: Tensors, lines: tuple[int, int], scales: Tensor | None
    ) -> bool:
        """Rounds lines, which the loops may cut into pieces of `plan.block`. Releases the GIL."""
        status = _lines_loop(self.statistics.loops)(
            byref(plan),
            t.x.data_ptr(),
            t.out.data_ptr(),
            None if t.mask is None else t.mask.data_ptr(),
            None if scales is None else scales.data_ptr(),
            TYPES[t.x.dtype],
            *lines,
            torch.get_num_threads(),
        )
        return status == 0

    def _round_matrices(self, plan: LoopParameters, t: Tensors, tiling: BlockTiling) -> bool:
        status: int = self.statistics.loops.chop_fake_quantize_grid(
            byref(plan),
            *map(pointer, (t.x, t.out, t.mask)),
            TYPES[t.x.dtype],
            *map(c_int64, tiling[:4]),
            torch.get_num_threads(),
        )
        return status == 0


@cache
def _lines_loop(loops: ctypes.CDLL) -> Callable[..., int]:
    """Returns `chop_fake_quantize` with declared argument types, which make calls faster."""
    prototype = ctypes.CFUNCTYPE(c_int32, *[c_void_p] * 5, c_int32, c_int64, c_int64, c_int32)
    return prototype(("chop_fake_quantize", loops))


# An entry holds its format, so that the id cannot be reused by another one.
_LINES: dict[tuple[int, torch.dtype], tuple[NumberFormat, Line | None]] = {}
"""Fast paths by the identity of the format: hashing a format takes as long as a small tensor."""
MOST_LINES = 4096


def get_line(number_format: NumberFormat, x: Tensor) -> Line | None:
    """Returns the fast path for small tensors, for which planning would take longer than rounding.

    None if scales must be measured first, or if the library is not loaded yet.
    """
    key = id(number_format), x.dtype
    entry = _LINES.get(key)
    if entry is None:
        if not is_loaded():
            return None
        if len(_LINES) >= MOST_LINES:
            _LINES.clear()
        entry = _LINES[key] = number_format, _whole_line(number_format, x.dtype)
    return entry[1] if x.is_contiguous() else None


def _whole_line(number_format: NumberFormat, dtype: torch.dtype) -> Line | None:
    loops = library().library
    if loops is None or dtype not in TYPES:
        return None
    plan = get_plan(number_format, dtype) if number_format.is_fitted else None
    if plan is None or plan.scale != NONE or plan.core == RESIDUAL:
        return None
    # `byref` holds a reference to the plan.
    loop, kind, reference = _lines_loop(loops), TYPES[dtype], byref(plan)

    @cache
    def marking() -> Any:
        layout = get_layout(number_format)
        assert layout is not None
        return byref(with_unsaturated_range(plan, layout))

    def line(x: int, out: int, count: int, mask: int | None = None) -> int:
        used = reference if mask is None else marking()
        return loop(used, x, out, mask, None, kind, 1, count, torch.get_num_threads())

    return line


def _lies_in_place(plan: LoopParameters, tiling: BlockTiling) -> bool:
    if plan.scale in (GIVEN, MEAN):  # each line must be a whole group
        return tiling.block_rows == 1 and tiling.columns % tiling.block_columns == 0
    return tiling.block_rows == 1 or tiling.block_columns <= WIDEST_BLOCK


def clip_gradient(grad: Tensor, mask: Tensor) -> Tensor:
    """Returns `grad` with zeros where `mask` is True, without recording an autograd node."""
    out = torch.empty_like(grad)
    in_order = grad.is_contiguous() and mask.is_contiguous() and out.is_contiguous()
    loops = library().library if in_order and is_ready() and grad.dtype in TYPES else None
    if loops is None:
        # A product with the mask would turn infinite gradients into NaN.
        return torch.where(mask, grad.new_zeros(()), grad, out=out)
    count, threads = c_int64(grad.numel()), torch.get_num_threads()
    loops.chop_clip(*map(pointer, (grad, mask, out)), TYPES[grad.dtype], count, threads)
    return out


OPERATORS.impl("clip_gradient", clip_gradient, "CPU")
CPU_FAKE_QUANTIZE = register(Kernel("C++ fake-quantize", "cpu", run, get_line))
