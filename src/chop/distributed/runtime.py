"""Runtime functions of sharded graphs: from plain tensors to DTensors, back, and resharding.

Arguments that say where are plain, so that sharded graphs are copied as others.
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
    """Makes a mesh the one of its shape that sharded graphs run on in this process."""
    _MESHES[tuple(mesh.shape)] = mesh


def _get_mesh(shape: Sequence[int]) -> DeviceMesh:
    """The mesh of a shape.

    Raises:
        PlanError: this process is on no such mesh.
    """
    found = _MESHES.get(tuple(shape))
    if found is None:
        raise PlanError(
            f"mesh {format_mesh(tuple(shape))}: this process is on no such mesh; shard the graph "
            "with resharding_transform_pass first."
        )
    return found


def replicate(value: Any, mesh: tuple[int, ...]) -> Any:
    """Plain tensors as DTensors that every process has whole; others, and numbers, as they are.

    Nothing is sent: each process has made the same tensor.

    Args:
        value: a tensor, or tuples, lists and dicts of some.
        mesh: its shape.

    Raises:
        PlanError: this process is on no such mesh, or in `torch.inference_mode`.
    """
    from torch.distributed.tensor import DTensor

    def of(x: Any) -> Any:
        if not isinstance(x, Tensor) or isinstance(x, DTensor):
            return x
        everywhere = as_torch((REPLICATED,) * len(mesh))
        return DTensor.from_local(x, _get_mesh(mesh), everywhere, run_check=False)

    if torch.is_inference_mode_enabled():
        raise PlanError(
            "a sharded graph cannot run in torch.inference_mode(), which DTensor's views refuse: "
            "run it under torch.no_grad()."
        )
    return tree_map(of, value)


def redistribute(value: Any, placements: tuple[str, ...]) -> Any:
    """DTensors, or tuples, lists and dicts of some, in another layout; others stay as they are.

    Raises:
        PlanError: a tensor has no such dimension.
    """
    from torch.distributed.tensor import DTensor

    def of(x: Any) -> Any:
        if not isinstance(x, DTensor):
            return x
        wanted = normalized(placements, x.ndim, "what a node reads")
        return x.redistribute(x.device_mesh, as_torch(wanted))

    return tree_map(of, value)


def contiguous(value: Any) -> Any:
    """A DTensor whose chunks lie in memory in the order of their dimensions, as views need them."""
    from torch.distributed.tensor import DTensor

    if not isinstance(value, DTensor):
        return value
    local = value.to_local()
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
    """A DTensor that every process has whole: itself, or a copy."""
    from torch.distributed.tensor import DTensor

    if not isinstance(value, DTensor) or _is_whole(value):
        return value
    return value.redistribute(placements=as_torch((REPLICATED,) * value.device_mesh.ndim))


def write_back(written: Any, value: Any) -> Any:
    """Makes a DTensor, whose copy `whole` gave, what has been written into that; gives it."""
    from torch.distributed.tensor import DTensor

    if isinstance(value, DTensor) and not _is_whole(value):
        if any(place.is_partial() for place in value.placements):
            raise PlanError("a slice of partial sums is written; expected a plan that reads 'R'.")
        part = written.redistribute(value.device_mesh, value.placements)
        value.to_local().copy_(part.to_local())
        return value
    return written


def same_memory(value: Any, source: Any, name: str) -> Any:
    """A part of a tensor that is about to be written.

    Raises:
        PlanError: it is a copy, which DTensor has made to compute it in another layout.
    """
    from torch.distributed.tensor import DTensor

    tensors = [x for x in (value, source) if isinstance(x, DTensor)]
    if all(map(_is_whole, tensors)) or _memory(value) == _memory(source):
        return value
    raise PlanError(
        f"node '{name}' writes into a part of a tensor that is cut, and would write into a copy; "
        "expected a plan in which that tensor is replicated."
    )


def _is_whole(value: Any) -> bool:
    return all(place.is_replicate() for place in value.placements)


def _memory(value: Any) -> int:
    from torch.distributed.tensor import DTensor

    local = value.to_local() if isinstance(value, DTensor) else value
    address: int = local.untyped_storage().data_ptr()
    return address


def gather(value: Any) -> Any:
    """DTensors as plain whole tensors, which every process has."""
    from torch.distributed.tensor import DTensor

    return tree_map(lambda x: x.full_tensor() if isinstance(x, DTensor) else x, value)
