"""Placements of a tensor on the axes of a process mesh, as text and as slices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from chop.errors import PlanError

if TYPE_CHECKING:
    from torch.distributed.tensor import Placement

REPLICATED = "R"
"""Placement of a tensor that is whole on every process along the mesh axis."""
_SHARDED = re.compile(r"S(-?\d+)")


def sharded(dim: int) -> str:
    """Returns the placement of a tensor that is sharded along a dimension.

    >>> sharded(0)
    'S0'
    """
    return f"S{dim}"


def shard_dim(text: str) -> int | None:
    """Returns the sharded dimension of a placement; None if it is replicated.

    >>> shard_dim("S-1"), shard_dim("R")
    (-1, None)

    Raises:
        PlanError: if it is not a placement.
    """
    if text == REPLICATED:
        return None
    match = _SHARDED.fullmatch(text)
    if match is None:
        raise PlanError(
            f"placement '{text}': expected R (replicated) or S and a dimension, such as S0."
        )
    return int(match[1])


def normalized(texts: Sequence[str], rank: int, where: str) -> tuple[str, ...]:
    """Returns placements with non-negative dimensions.

    >>> normalized(["S-1", "R"], 3, "weight")
    ('S2', 'R')

    Raises:
        PlanError: if a tensor of that rank has no such dimension.
    """
    placements = []
    for text in texts:
        dim = shard_dim(text)
        if dim is not None and not -rank <= dim < rank:
            raise PlanError(f"{where}: {text} shards dimension {dim} of a tensor with {rank}.")
        placements.append(REPLICATED if dim is None else sharded(dim % rank))
    return tuple(placements)


def as_torch(texts: Sequence[str]) -> tuple[Placement, ...]:
    """Converts placements to those of `torch.distributed.tensor`."""
    from torch.distributed.tensor import Replicate, Shard

    dims = map(shard_dim, texts)
    return tuple(Replicate() if dim is None else Shard(dim) for dim in dims)


def local_slices(
    shape: Sequence[int],
    mesh: Sequence[int],
    coordinate: Sequence[int],
    placements: Sequence[str],
) -> tuple[slice, ...]:
    """Returns the slices of a tensor on one process.

    Along each mesh axis in turn, a dimension is cut like by `torch.chunk`: all chunks except the
    last have the same size, and there may be fewer chunks than processes.

    Args:
        shape: shape of the whole tensor.
        mesh: processes along each axis.
        coordinate: position of the process in the mesh.
        placements: one text per mesh axis, with non-negative dimensions.
    Returns: one slice per dimension.

    Example:
        >>> local_slices((5, 4), (2,), (1,), ("S0",))
        (slice(3, 5, None), slice(0, 4, None))
    """
    bounds = [(0, size) for size in shape]
    # Each axis cuts the part that the axes before it have left.
    for count, index, text in zip(mesh, coordinate, placements, strict=True):
        dim = shard_dim(text)
        if dim is not None:
            first, end = bounds[dim]
            # Rounded up like in `torch.chunk`, so the last parts may be short or empty.
            chunk = -(-(end - first) // count)
            start = min(first + index * chunk, end)
            bounds[dim] = start, min(start + chunk, end)
    return tuple(slice(first, end) for first, end in bounds)
