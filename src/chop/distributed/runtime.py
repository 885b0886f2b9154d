"""Runtime functions of sharded graphs: conversion of plain tensors and DTensors, and resharding.

Arguments that describe locations are plain data, so that sharded graphs can be copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from chop.base.nested import tree_map
from chop.distributed.placements import REPLICATED, as_torch, normalized
from chop.distributed.plan import format_mesh
from chop.errors import PlanError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_MESHES: dict[tuple[int, ...], DeviceMesh] = {}


def use_mesh(mesh: DeviceMesh) -> None:
    """Registers a mesh for the sharded graphs of its shape in this process."""
    _MESHES[tuple(mesh.shape)] = mesh


def _get_mesh(shape: Sequence[int]) -> DeviceMesh:
    """Returns the mesh of a shape.

    Raises:
        PlanError: if this process has no such mesh.
    """
    mesh = _MESHES.get(tuple(shape))
    if mesh is None:
        raise PlanError(
            f"mesh {format_mesh(tuple(shape))}: this process has no such mesh; shard the graph "
            "with resharding_transform_pass first."
        )
    return mesh


def replicate(value: Any, mesh: tuple[int, ...]) -> Any:
    """Converts plain tensors to replicated DTensors; DTensors and numbers are returned unchanged.

    Args:
        value: a tensor, or tuples, lists and dicts of tensors.
        mesh: shape of the mesh.

    Raises:
        PlanError: if this process has no such mesh, or is in `torch.inference_mode`.
    """
    from torch.distributed.tensor import DTensor

    def of(x: Any) -> Any:
        if not isinstance(x, Tensor) or isinstance(x, DTensor):
            return x
        everywhere = as_torch((REPLICATED,) * len(mesh))
        # Every process has computed the same tensor. `run_check` would broadcast it.
        return DTensor.from_local(x, _get_mesh(mesh), everywhere, run_check=False)

    if torch.is_inference_mode_enabled():
        raise PlanError(
            "a sharded graph cannot run in torch.inference_mode(), which DTensor's views do not "
            "support: use torch.no_grad()."
        )
    return tree_map(of, value)


def redistribute(value: Any, placements: tuple[str, ...]) -> Any:
    """Redistributes DTensors, also in tuples, lists and dicts; other values are returned unchanged.

    Raises:
        PlanError: if a tensor has no such dimension.
    """
    from torch.distributed.tensor import DTensor

    def of(x: Any) -> Any:
        if not isinstance(x, DTensor):
            return x
        wanted = normalized(placements, x.ndim, "input of a node")
        return x.redistribute(x.device_mesh, as_torch(wanted))

    return tree_map(of, value)


def contiguous(value: Any) -> Any:
    """Returns a DTensor with contiguous chunks, as views require."""
    from torch.distributed.tensor import DTensor

    if not isinstance(value, DTensor):
        return value
    local = value.to_local()
    # `view` needs a contiguous local tensor, and strides of the whole tensor that agree.
    dense = torch.empty(value.shape, device="meta").stride()
    if local.is_contiguous() and value.stride() == dense:
        return value
    return DTensor.from_local(
        local.contiguous(),
        value.device_mesh,
        value.placements,
        run_check=False,
        shape=value.shape,
        stride=dense,
    )


def whole(value: Any) -> Any:
    """Returns a replicated DTensor: the value itself, or a copy."""
    from torch.distributed.tensor import DTensor

    if not isinstance(value, DTensor) or _is_whole(value):
        return value
    return value.redistribute(placements=as_torch((REPLICATED,) * value.device_mesh.ndim))


def write_back(written: Any, value: Any) -> Any:
    """Writes a copy made by `whole` back to its DTensor, and returns it."""
    from torch.distributed.tensor import DTensor

    if isinstance(value, DTensor) and not _is_whole(value):
        if any(place.is_partial() for place in value.placements):
            raise PlanError(
                "a node writes into a slice of partial sums; expected a plan that reads 'R'."
            )
        # The written copy is whole; each process copies its part into the original memory.
        part = written.redistribute(value.device_mesh, value.placements)
        value.to_local().copy_(part.to_local())
        return value
    return written


def same_memory(value: Any, source: Any, name: str) -> Any:
    """Returns a part of a tensor ahead of a write to it.

    Raises:
        PlanError: if it is a copy, made by DTensor to compute in another layout.
    """
    from torch.distributed.tensor import DTensor

    tensors = [x for x in (value, source) if isinstance(x, DTensor)]
    if all(map(_is_whole, tensors)) or _memory(value) == _memory(source):
        return value
    raise PlanError(
        f"node '{name}' writes into a part of a sharded tensor, and would write into a copy; "
        "expected a plan that replicates this tensor."
    )


def _is_whole(value: Any) -> bool:
    return all(place.is_replicate() for place in value.placements)


def _memory(value: Any) -> int:
    from torch.distributed.tensor import DTensor

    local = value.to_local() if isinstance(value, DTensor) else value
    address: int = local.untyped_storage().data_ptr()
    return address


def gather(value: Any) -> Any:
    """Gathers DTensors to plain, whole tensors on every process."""
    from torch.distributed.tensor import DTensor

    return tree_map(lambda x: x.full_tensor() if isinstance(x, DTensor) else x, value)
