"""Layouts of a value on a mesh: placements per axis, including partial sums, and local sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from chop.distributed.placements import REPLICATED, shard_dim

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

PARTIAL = "P"
"""Placement of partial sums: each process along the axis has a summand."""
Layout = tuple[str, ...]
"""Per mesh axis: "R", "S" and the sharded dimension, or "P"."""


def get_layout(tensor: DTensor) -> Layout | None:
    """Returns the layout of a DTensor; None if plans cannot express it, such as strided shards."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    texts = []
    for place in tensor.placements:
        if type(place) is Replicate:
            texts.append(REPLICATED)
        elif type(place) is Shard:
            texts.append(f"S{place.dim}")
        elif type(place) is Partial and place.reduce_op == "sum":
            texts.append(PARTIAL)
        else:
            return None
    return tuple(texts)


def torch_placements(layout: Layout) -> tuple[Any, ...]:
    """Converts a layout to placements of `torch.distributed.tensor`."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    def of(text: str) -> Any:
        if text == PARTIAL:
            return Partial()
        dim = shard_dim(text)
        return Replicate() if dim is None else Shard(dim)

    return tuple(map(of, layout))


def local_shape(
    shape: Sequence[int], mesh: Sequence[int], layout: Layout
) -> tuple[int, ...] | None:
    """Returns the local shape of a tensor; None if it differs between processes.

    >>> local_shape((4, 6), (2, 2), ("S1", "P"))
    (4, 3)
    """
    sizes = list(shape)
    for count, text in zip(mesh, layout, strict=True):
        dim = None if text == PARTIAL else shard_dim(text)
        if dim is None:
            continue
        if dim >= len(sizes) or sizes[dim] % count or sizes[dim] == 0:
            return None
        sizes[dim] //= count
    return tuple(sizes)


def local_bytes(tensor: Tensor, mesh: Sequence[int], layout: Layout) -> int:
    """Returns the local bytes of a tensor on every process."""
    shape = local_shape(tensor.shape, mesh, layout)
    assert shape is not None
    return tensor.itemsize * math.prod(shape)


def sharded_fake(like: Tensor, mesh: DeviceMesh, layout: Layout) -> DTensor | None:
    """Returns a fake DTensor in a layout; None if the tensor does not divide.

    Args:
        like: tensor with the shape and dtype of the whole value.
        mesh: the processes.
        layout: the layout.
    """
    from torch.distributed.tensor import DTensor

    shape = local_shape(like.shape, tuple(mesh.shape), layout)
    if shape is None:
        return None
    return DTensor.from_local(
        torch.empty(shape, dtype=like.dtype),
        mesh,
        torch_placements(layout),
        run_check=False,
        shape=like.shape,
        stride=torch.empty(like.shape, device="meta").stride(),
    )


def processes_that_share(mesh: Sequence[int], layout: Layout) -> int:
    """Returns the number of processes that share the work of a result in a layout.

    >>> processes_that_share((2, 4), ("R", "P"))
    4
    """
    return math.prod(n for n, text in zip(mesh, layout, strict=True) if text != REPLICATED)
