"""Simulated mesh and fake tensors for planning."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from chop.base.nested import tree_map
from chop.distributed.plan import format_mesh, named_tensors
from chop.errors import PlanError
from chop.ir.graph import MaseGraph
from chop.private.dtensor import as_simulated

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


FAILURES = (
    *(RuntimeError, AssertionError, NotImplementedError, ValueError, TypeError),
    *(IndexError, KeyError, AttributeError),
)
"""Exceptions of DTensor and operators for unsupported layouts."""


@contextmanager
def simulated_mesh(shape: tuple[int, ...]) -> Iterator[DeviceMesh]:
    """Yields a mesh of simulated processes, with this one as the first; nothing is sent.

    Raises:
        PlanError: if a process group exists already.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    if dist.is_initialized():
        raise PlanError(
            f"mesh {format_mesh(shape)} cannot be simulated after a process group was created: "
            "simulate before, or use find_sharding or autosharding_analysis_pass."
        )
    hook = sys.excepthook  # torch wraps it at each initialization, to print the rank
    dist.init_process_group("fake", rank=0, world_size=math.prod(shape))
    try:
        yield as_simulated(init_device_mesh("cpu", shape))
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook


def fake_copy(mg: MaseGraph) -> MaseGraph:
    """Copies a graph with fake tensors; the caller has entered `FakeTensorMode`."""
    tensors: dict[int, Any] = {}
    originals = named_tensors(mg.model)  # held, because ids are unique only among living objects
    for _, x in originals:
        empty = torch.empty(x.shape, dtype=x.dtype)
        is_parameter = isinstance(x, nn.Parameter)
        tensors.setdefault(id(x), nn.Parameter(empty, x.requires_grad) if is_parameter else empty)
    twin = copy.deepcopy(mg, tensors)
    twin.model.eval()
    return twin


def fake_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Converts inputs to fake tensors; the caller has entered `FakeTensorMode`."""

    def of(x: Any) -> Any:
        return torch.empty(x.shape, dtype=x.dtype) if isinstance(x, Tensor) else x

    return {name: tree_map(of, value) for name, value in inputs.items()}
