"""Slice guards: size tests that torch makes inside slices and splits, made in Python first.

A slice stops at the end of its dimension, and a split returns as many parts as fit. Both affect the
control flow of a model, and torch decides both inside an operator. The same test in Python before
the call makes it a test of the model, which is stored with its line.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def guard_slice_bounds(tensor: Tensor, index: Any) -> None:
    """Tests whether each bound of an index such as `x[:, 1:n]` lies inside `tensor`."""
    items = index if isinstance(index, tuple) else (index,)
    taken = sum(_dims_taken(item) for item in items)
    dim = 0
    for item in items:
        if item is Ellipsis:
            dim += tensor.dim() - taken
            continue
        if isinstance(item, slice):
            _test_bounds(item, tensor.shape[dim])
        dim += _dims_taken(item)


def _dims_taken(item: Any) -> int:
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    if isinstance(item, Tensor) and item.dtype is torch.bool:
        return item.dim()
    return 1


def _test_bounds(bounds: slice, size: Any) -> None:
    for bound in (bounds.start, bounds.stop):
        # Slices of at most one row accept any size of the dimension.
        if isinstance(bound, Tensor) or bound is None or bound in (-1, 0, 1):
            continue
        inside = -bound <= size if bound < 0 else bound <= size
        # The conversion makes torch decide the test, which the shape environment stores.
        bool(inside)


def guard_split_count(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Tests the number of parts that `split` or `chunk` returns."""
    named = dict(zip(("tensor", "parts", "dim"), args, strict=False)) | kwargs
    tensor = named.get("tensor", named.get("input"))
    parts = named.get("parts", named.get("chunks", named.get("split_size_or_sections")))
    parts = named.get("split_size", parts)
    if not isinstance(tensor, Tensor) or isinstance(parts, tuple | list):
        return
    size = tensor.shape[named.get("dim", 0)]
    each = -(-size // parts) if name == "chunk" else parts
    count = -(-size // each)
    int(count)
