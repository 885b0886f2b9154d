"""Magnitude selection for activation pruning: the lowest magnitudes of a tensor."""

from __future__ import annotations

from ctypes import c_int64

import torch
from torch import Tensor

from chop.kernels.base import is_followed
from chop.kernels.cpu.build import is_ready, library
from chop.kernels.cpu.fake_quantize import TYPES, WORTH_COMPILING, clip_gradient
from chop.kernels.cpu.measure import pointer

OPERATORS = torch.library.Library("chop", "FRAGMENT")
OPERATORS.define(
    "lowest_magnitudes(Tensor x, SymInt count) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,)
)


def lowest_magnitudes(x: Tensor, count: int) -> Tensor:
    """Marks the `count` elements of lowest magnitude: the readable reference.

    Ties select the first elements. NaN counts as larger than infinity.

    Args:
        x: floating-point tensor of any shape.
        count: 0 to the number of elements.
    Returns: boolean tensor in the shape of `x`.
    """
    order = x.abs().reshape(-1).argsort(stable=True)
    # A slice of the order would put a bound on the size into an exported program.
    is_low = torch.arange(x.numel(), device=x.device) < count
    return torch.zeros_like(order, dtype=torch.bool).scatter(0, order, is_low).view(x.shape)


def _by_selection(x: Tensor, count: int) -> Tensor:
    """Computes `lowest_magnitudes` by selection, which is many times faster than sorting."""
    magnitudes = x.abs().reshape(-1)
    if count == 0 or not magnitudes.numel():
        return torch.zeros(x.shape, dtype=torch.bool, device=x.device)
    threshold = magnitudes.kthvalue(count).values
    # `kthvalue` sorts NaN last: a threshold of NaN lies above all numbers.
    has_nan, is_nan = threshold.isnan(), magnitudes.isnan()
    below = torch.where(has_nan, ~is_nan, magnitudes < threshold)
    tied = torch.where(has_nan, is_nan, magnitudes == threshold)
    # Elements below the threshold are all marked, ties only until `count` is reached.
    missing = count - torch.count_nonzero(below)
    return (below | (tied & (tied.cumsum(0) <= missing))).view(x.shape)


def _select(x: Tensor, count: int, out: Tensor | None) -> Tensor | None:
    """Computes `lowest_magnitudes` in C++ and writes the pruned `x` to `out`; None if unsupported.

    Args:
        x: tensor on the CPU.
        count: see `lowest_magnitudes`.
        out: float32 and contiguous, in which case `x` must be too; or None.
    """
    if x.dtype not in TYPES or count == 0 or not x.numel():
        return None
    loops = library().library if is_ready() or x.numel() >= WORTH_COMPILING else None
    if loops is None:
        return None
    values = x.float().contiguous()
    marks = torch.empty(x.shape, dtype=torch.bool, device="cpu")
    sizes = c_int64(x.numel()), c_int64(count), torch.get_num_threads()
    has_infinite = loops.chop_lowest_magnitudes(*map(pointer, (values, marks, out)), *sizes)
    return None if has_infinite else marks


def _on_cpu(x: Tensor, count: int) -> Tensor:
    marks = _select(x, count, None)
    return _by_selection(x, count) if marks is None else marks


def drop(x: Tensor, marks: Tensor) -> Tensor:
    """Returns `x` with zeros where `marks` is True; gradients are zero there as well."""
    is_direct = x.device.type == "cpu" and not is_followed(x)
    return clip_gradient(x, marks) if is_direct else torch.ops.chop.clip_gradient(x, marks)


def drop_lowest(x: Tensor, count: int) -> Tensor:
    """Returns `x` with zeros for the `count` lowest magnitudes; gradients are zero there as well.

    Bypasses PyTorch's dispatcher like `fake_quantize_directly`.
    """
    is_direct = x.device.type == "cpu" and x.dtype == torch.float32 and not is_followed(x)
    if is_direct and x.is_contiguous():
        out = torch.empty_like(x)
        if _select(x, count, out) is not None:
            return out
    return drop(x, torch.ops.chop.lowest_magnitudes(x.detach(), count))


OPERATORS.impl("lowest_magnitudes", _by_selection, "CompositeExplicitAutograd")
OPERATORS.impl("lowest_magnitudes", _on_cpu, "CPU")


def _mask_shape(x: Tensor, count: int) -> Tensor:
    return torch.empty(x.shape, dtype=torch.bool, device=x.device)


torch.library.register_fake("chop::lowest_magnitudes", _mask_shape, lib=OPERATORS)
