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
"""Number of processes and index of this process, along each axis of a mesh."""


@dataclass(frozen=True)
class _Piece:
    """Expected part of a value on this process.

    Attributes:
        layout: description for messages, such as "S2" or "chunk 1 of 2 along dimension 2, local".
        local: this process's part of the whole value.
        value: the part in the form of the sharded model, with its layout and strides.
    """

    layout: str
    local: Tensor
    value: Tensor


def chunk_groups(model: nn.Module) -> Groups:
    """Returns group size and rank along each axis of a sharded model's meshes."""
    from torch.distributed.tensor import DTensor

    tensors: Iterable[Tensor] = [*model.parameters(), *model.buffers()]
    meshes = {x.device_mesh for x in tensors if isinstance(x, DTensor)}
    return sorted({(m.size(d), m.get_local_rank(d)) for m in meshes for d in range(m.ndim)})


def get_local(value: Tensor) -> Tensor:
    """Returns this process's tensor; partial sums are reduced first, on all processes."""
    from torch.distributed.tensor import DTensor, Replicate

    if not isinstance(value, DTensor):
        return value
    if any(placement.is_partial() for placement in value.placements):
        whole = [Replicate() if p.is_partial() else p for p in value.placements]
        value = value.redistribute(placements=whole)
    return value.to_local()


def get_piece(whole: Tensor, actual: Tensor, groups: Groups) -> _Piece | None:
    """Returns the expected part for a value's layout; None if no layout gives its shape.

    Args:
        whole: the reference.
        actual: value of the sharded model.
        groups: see `chunk_groups`.
    """
    from torch.distributed.tensor import DTensor

    if isinstance(actual, DTensor):
        return _sharded_piece(whole, actual) if actual.shape == whole.shape else None
    if actual.shape == whole.shape:
        return _Piece("whole, local", whole, _strided_like(whole, actual))
    if actual.ndim != whole.ndim:
        return None
    axes = [d for d in range(whole.ndim) if actual.shape[d] != whole.shape[d]]
    for size, rank in groups if len(axes) == 1 else []:
        chunks = torch.chunk(whole, size, axes[0])
        if rank < len(chunks) and chunks[rank].shape == actual.shape:
            layout = f"chunk {rank} of {size} along dimension {axes[0]}, local"
            return _Piece(layout, chunks[rank], _strided_like(chunks[rank], actual))
    return None


def layout_text(value: object) -> str:
    """Formats the placements of a DTensor as in a plan; "local" for other values.

    >>> layout_text(torch.ones(2))
    'local'
    """
    from torch.distributed.tensor import DTensor, Replicate, Shard

    if not isinstance(value, DTensor):
        return "local"
    texts = []
    for placement in value.placements:
        if isinstance(placement, Replicate):
            texts.append("R")
        else:
            texts.append(f"S{placement.dim}" if isinstance(placement, Shard) else str(placement))
    return ", ".join(texts)


def _sharded_piece(whole: Tensor, actual: DTensor) -> _Piece:
    from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor

    mesh = actual.device_mesh
    # Partial sums of an embedding have a mask, which the whole reference does not need.
    placements = [Partial(p.reduce_op) if isinstance(p, Partial) else p for p in actual.placements]
    unreduced = [Replicate() if p.is_partial() else p for p in placements]
    # Every process has the whole reference and takes its part, so nothing is sent.
    local = distribute_tensor(whole, mesh, unreduced, src_data_rank=None).to_local()
    coordinate = mesh.get_coordinate() or ()
    own = local
    for reduction, neutral in (("sum", 0), ("product", 1)):
        parts = zip(placements, coordinate, strict=True)
        # One process along the axis has the value, and the others the neutral element.
        if any(place for p, place in parts if p.is_partial(reduction)):
            own = torch.full_like(local, neutral)
    value = DTensor.from_local(
        _strided_like(own, actual.to_local()),
        mesh,
        placements,
        run_check=False,
        shape=actual.shape,
        stride=actual.stride(),
    )
    return _Piece(layout_text(actual), local, value)


def _strided_like(x: Tensor, actual: Tensor) -> Tensor:
    """Returns `x` with the strides of `actual`, so that `view` works on both or on neither."""
    if x.shape != actual.shape:
        return x.clone()
    repeated = [d for d in range(x.ndim) if actual.stride(d) == 0]
    for dim in repeated:
        # A stride of 0 repeats one element; `expand` restores it.
        x = x.narrow(dim, 0, min(1, x.shape[dim]))
    twin = torch.empty_strided(x.shape, actual.stride(), dtype=x.dtype, device=x.device)
    return twin.copy_(x).expand(actual.shape)
