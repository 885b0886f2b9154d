"""Bytes of parameters and buffers that each process keeps by a plan."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from torch import Tensor

from chop.distributed.placements import REPLICATED, local_slices
from chop.distributed.plan import ShardingPlan, named_tensors
from chop.ir.graph import MaseGraph


def kept_bytes(mg: MaseGraph, plan: ShardingPlan) -> list[int]:
    """Bytes of the parameters and buffers that each process keeps, by its rank.

    Args:
        mg: the graph, sharded or not; it may be on the meta device.
        plan: checked, see `ShardingPlan.checked`.
    """
    return [
        sum(_local_bytes(x, plan, path, place) for path, x in _tensors(mg))
        for place in itertools.product(*map(range, plan.mesh))
    ]


def replicated_bytes(mg: MaseGraph, plan: ShardingPlan) -> dict[str, int]:
    """Bytes of those parameters and buffers that every process keeps whole, largest first."""
    whole = (REPLICATED,) * len(plan.mesh)
    sizes = {path: x.nbytes for path, x in _tensors(mg) if plan.placement(path) == whole}
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def _tensors(mg: MaseGraph) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers by path, tied ones once."""
    seen = set[int]()
    for path, tensor in named_tensors(mg.model):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield path, tensor


def _local_bytes(x: Tensor, plan: ShardingPlan, path: str, place: tuple[int, ...]) -> int:
    slices = local_slices(x.shape, plan.mesh, place, plan.placement(path))
    size: int = x.itemsize * math.prod(part.stop - part.start for part in slices)
    return size
