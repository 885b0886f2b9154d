"""Memory geometry of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor


def tensor_geometry(x: Tensor) -> tuple[Any, ...]:
    """Returns size, strides, offset and bytes of an element."""
    return x.size(), x.stride(), x.storage_offset(), x.itemsize


def fills_same_memory(geometry: tuple[Any, ...], x: Tensor) -> bool:
    """Returns whether two tensors fill the same part of memory."""
    size, stride, offset, itemsize = geometry
    if (offset, itemsize, math.prod(size)) != (x.storage_offset(), x.itemsize, x.numel()):
        return False
    return geometry == tensor_geometry(x) or (
        _is_dense(size, stride) and _is_dense(x.shape, x.stride())
    )


def _is_dense(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Returns whether a tensor fills its memory in some order of its dimensions."""
    step = 1
    for dim in reversed(_memory_order(stride)):
        if size[dim] != 1 and stride[dim] != step:
            return False
        step *= size[dim]
    return True


def _memory_order(stride: Sequence[int]) -> list[int]:
    return sorted(range(len(stride)), key=stride.__getitem__, reverse=True)


def rearrange_hidden(hidden: Tensor, stride: Sequence[int], x: Tensor) -> Tensor:
    """Returns the hidden elements of a memory in the layout of a tensor, without copying whole
    rows.

    Args:
        hidden: mask in the shape of a tensor that fills the memory.
        stride: strides of that tensor.
        x: tensor that fills the same memory.
    """
    given, order = hidden.permute(_memory_order(stride)), _memory_order(x.stride())
    shape, alike = [x.size(dim) for dim in order], 1
    while given.dim() and (given.stride(-1) == 0 or given.size(-1) == 1):
        alike *= given.size(-1)
        given = given[..., 0]
    whole = len(shape)
    while whole and alike % shape[whole - 1] == 0:
        whole -= 1
        alike //= shape[whole]
    rows = given.flatten().repeat_interleave(alike) if alike > 1 else given
    placed = rows.reshape(shape[:whole] + [1] * (len(shape) - whole)).expand(shape)
    return placed.permute(sorted(range(len(order)), key=order.__getitem__))
