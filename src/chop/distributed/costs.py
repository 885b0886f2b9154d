"""Bytes of parameters and buffers on each process of a plan."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from torch import Tensor

from chop.distributed.placements import REPLICATED, local_slices
from chop.distributed.plan import ShardingPlan, named_tensors
from chop.ir.graph import MaseGraph


def parameter_bytes(mg: MaseGraph, plan: ShardingPlan) -> list[int]:
    """Returns the bytes of each process's parameters and buffers, by rank.

    Args:
        mg: the graph, sharded or not, possibly on the meta device.
        plan: checked plan, see `ShardingPlan.checked`.
    """
    return [
        sum(_local_bytes(x, plan, path, place) for path, x in _tensors(mg))
        for place in itertools.product(*map(range, plan.mesh))
    ]


def replicated_bytes(mg: MaseGraph, plan: ShardingPlan) -> dict[str, int]:
    """Returns the bytes of replicated parameters and buffers, largest first."""
    whole = (REPLICATED,) * len(plan.mesh)
    sizes = {path: x.nbytes for path, x in _tensors(mg) if plan.placement(path) == whole}
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def _tensors(mg: MaseGraph) -> Iterator[tuple[str, Tensor]]:
    """Returns parameters and buffers by path, tied ones once."""
    seen = set[int]()
    for path, tensor in named_tensors(mg.model):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield path, tensor


def _local_bytes(x: Tensor, plan: ShardingPlan, path: str, place: tuple[int, ...]) -> int:
    slices = local_slices(x.shape, plan.mesh, place, plan.placement(path))
    size: int = x.itemsize * math.prod(part.stop - part.start for part in slices)
    return size
