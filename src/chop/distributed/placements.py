"""Placements: how a tensor lies on the axes of a mesh of processes, as text and as slices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from chop.errors import PlanError

if TYPE_CHECKING:
    from torch.distributed.tensor import Placement

REPLICATED = "R"
"""Every process along the axis of the mesh has the whole tensor."""
_SHARDED = re.compile(r"S(-?\d+)")


def sharded(dim: int) -> str:
    """The text of a tensor that is cut into chunks along a dimension.

    >>> sharded(0)
    'S0'
    """
    return f"S{dim}"


def shard_dim(text: str) -> int | None:
    """The dimension that a placement cuts; None where it is replicated.

    >>> shard_dim("S-1"), shard_dim("R")
    (-1, None)

    Raises:
        PlanError: it is no placement.
    """
    if text == REPLICATED:
        return None
    found = _SHARDED.fullmatch(text)
    if found is None:
        raise PlanError(f"placement '{text}': expected R (replicated) or S and a dimension, as S0.")
    return int(found[1])


def normalized(texts: Sequence[str], rank: int, where: str) -> tuple[str, ...]:
    """Placements with dimensions counted from the front.

    >>> normalized(["S-1", "R"], 3, "weight")
    ('S2', 'R')

    Raises:
        PlanError: a tensor of that rank has no such dimension.
    """
    found = []
    for text in texts:
        dim = shard_dim(text)
        if dim is not None and not -rank <= dim < rank:
            raise PlanError(f"{where}: {text} cuts dimension {dim} of a tensor that has {rank}.")
        found.append(REPLICATED if dim is None else sharded(dim % rank))
    return tuple(found)


def as_torch(texts: Sequence[str]) -> tuple[Placement, ...]:
    """Placements as `torch.distributed.tensor` has them."""
    from torch.distributed.tensor import Replicate, Shard

    dims = map(shard_dim, texts)
    return tuple(Replicate() if dim is None else Shard(dim) for dim in dims)


def local_slices(
    shape: Sequence[int],
    mesh: Sequence[int],
    coordinate: Sequence[int],
    placements: Sequence[str],
) -> tuple[slice, ...]:
    """What of a tensor one process has.

    Along each axis of the mesh in turn, a dimension is cut as by `torch.chunk`: all chunks have
    the same size but the last, and there may be fewer chunks than processes.

    Args:
        shape: of the whole tensor.
        mesh: processes along each axis.
        coordinate: the place of the process on the mesh.
        placements: one text per axis of the mesh; dimensions counted from the front.
    Returns: one slice per dimension.

    Example:
        >>> local_slices((5, 4), (2,), (1,), ("S0",))
        (slice(3, 5, None), slice(0, 4, None))
    """
    bounds = [(0, size) for size in shape]
    for count, index, text in zip(mesh, coordinate, placements, strict=True):
        dim = shard_dim(text)
        if dim is not None:
            first, end = bounds[dim]
            chunk = -(-(end - first) // count)
            start = min(first + index * chunk, end)
            bounds[dim] = start, min(start + chunk, end)
    return tuple(slice(first, end) for first, end in bounds)
