"""Local layout of a value: a DTensor, or a plain local tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


Groups = Sequence[tuple[int, int]]
"""Processes and this one's place among them, along each axis of a mesh."""


@dataclass(frozen=True)
class _Piece:
    """What this process should have of a value.

    Attributes:
        layout: for messages, as "S2" or "chunk 1 of 2 along dimension 2, local".
        local: the part of the whole value.
        value: the same as the model would have it: in the layout, with the strides of what came.
    """

    layout: str
    local: Tensor
    value: Tensor


def chunk_groups(model: nn.Module) -> Groups:
    """Processes and this one's place among them, along each axis of a sharded model's meshes."""
    from torch.distributed.tensor import DTensor

    tensors: Iterable[Tensor] = [*model.parameters(), *model.buffers()]
    meshes = {x.device_mesh for x in tensors if isinstance(x, DTensor)}
    return sorted({(m.size(d), m.get_local_rank(d)) for m in meshes for d in range(m.ndim)})


def get_local(found: Tensor) -> Tensor:
    """The tensor of this process; partial sums are added up first, by all."""
    from torch.distributed.tensor import DTensor, Replicate

    if not isinstance(found, DTensor):
        return found
    if any(placement.is_partial() for placement in found.placements):
        whole = [Replicate() if p.is_partial() else p for p in found.placements]
        found = found.redistribute(placements=whole)
    return found.to_local()


def get_piece(whole: Tensor, found: Tensor, groups: Groups) -> _Piece | None:
    """What `found` should be, by its own layout; None where no layout gives its shape.

    Args:
        whole: the reference.
        found: the sharded model's.
        groups: see `chunk_groups`.
    """
    from torch.distributed.tensor import DTensor

    if isinstance(found, DTensor):
        return _sharded_piece(whole, found) if found.shape == whole.shape else None
    if found.shape == whole.shape:
        return _Piece("whole, local", whole, _strided_like(whole, found))
    if found.ndim != whole.ndim:
        return None
    axes = [d for d in range(whole.ndim) if found.shape[d] != whole.shape[d]]
    for size, rank in groups if len(axes) == 1 else []:
        chunks = torch.chunk(whole, size, axes[0])
        if rank < len(chunks) and chunks[rank].shape == found.shape:
            layout = f"chunk {rank} of {size} along dimension {axes[0]}, local"
            return _Piece(layout, chunks[rank], _strided_like(chunks[rank], found))
    return None


def layout_text(found: object) -> str:
    """The placements of a DTensor as a plan writes them; "local" for others.

    >>> layout_text(torch.ones(2))
    'local'
    """
    from torch.distributed.tensor import DTensor, Replicate, Shard

    if not isinstance(found, DTensor):
        return "local"
    texts = []
    for placement in found.placements:
        if isinstance(placement, Replicate):
            texts.append("R")
        else:
            texts.append(f"S{placement.dim}" if isinstance(placement, Shard) else str(placement))
    return ", ".join(texts)


def _sharded_piece(whole: Tensor, found: DTensor) -> _Piece:
    from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor

    mesh = found.device_mesh
    # Partial sums of an embedding bring a mask along, which the whole reference needs no more.
    placements = [Partial(p.reduce_op) if isinstance(p, Partial) else p for p in found.placements]
    kept = [Replicate() if p.is_partial() else p for p in placements]
    # Every process has the whole reference: it takes its part, and nothing is sent.
    local = distribute_tensor(whole, mesh, kept, src_data_rank=None).to_local()
    coordinate = mesh.get_coordinate() or ()
    own = local
    for reduction, neutral in (("sum", 0), ("product", 1)):
        parts = zip(placements, coordinate, strict=True)
        if any(place for p, place in parts if p.is_partial(reduction)):
            own = torch.full_like(local, neutral)
    value = DTensor.from_local(
        _strided_like(own, found.to_local()),
        mesh,
        placements,
        run_check=False,
        shape=found.shape,
        stride=found.stride(),
    )
    return _Piece(layout_text(found), local, value)


def _strided_like(x: Tensor, found: Tensor) -> Tensor:
    """The values of `x` in the memory layout of `found`: a `view` has to do on both or neither."""
    if x.shape != found.shape:
        return x.clone()
    repeated = [d for d in range(x.ndim) if found.stride(d) == 0]
    for dim in repeated:
        x = x.narrow(dim, 0, min(1, x.shape[dim]))
    twin = torch.empty_strided(x.shape, found.stride(), dtype=x.dtype, device=x.device)
    return twin.copy_(x).expand(found.shape)
