"""Private API of `DistributedDataParallel` and `fully_shard` (FSDP2).

Tested with torch 2.13; `tests/private/test_fences.py` fails first if a name is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

IGNORED = "_ddp_params_and_buffers_to_ignore"
"""Attribute of a model with the names of parameters and buffers that DDP ignores."""


class Replicas(NamedTuple):
    """Model trained by several processes.

    Attributes:
        wrapper: module that users call: the DDP module, or the root of FSDP2.
        model: wrapped module, with the paths of state dicts.
        is_sharded: True if parameters are complete only during the forward (FSDP2).
    """

    wrapper: nn.Module
    model: nn.Module
    is_sharded: bool


def has_process_group() -> bool:
    """Returns whether this process belongs to a process group."""
    return dist.is_available() and dist.is_initialized()


def running_replicas() -> Replicas | None:
    """Returns the model whose forward is running under DDP or FSDP2, or None."""
    ddp: Any = DistributedDataParallel._active_ddp_module
    if ddp is not None:
        return find_replicas(ddp)
    if "torch.distributed.fsdp" not in sys.modules:
        return None
    from torch.distributed._composable_state import _module_state_mapping
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

    for reference in _module_state_mapping.values():
        wrapper = reference()
        root = wrapper._state_ctx.iter_forward_root if isinstance(wrapper, FSDPState) else None
        if root is not None:
            (module,) = root._modules
            return find_replicas(module)
    return None


def find_replicas(wrapper: nn.Module) -> Replicas:
    """Returns the model wrapped by a DDP module or an FSDP2 root, or None."""
    if isinstance(wrapper, DistributedDataParallel):
        return Replicas(wrapper, wrapper.module, False)
    return Replicas(wrapper, wrapper, True)


def process_groups(replicas: Replicas) -> list[Any]:
    """Returns the process groups over which a model is replicated or sharded."""
    if isinstance(replicas.wrapper, DistributedDataParallel):
        return [replicas.wrapper.process_group]
    from torch.distributed.tensor import DTensor

    meshes = [x.device_mesh for x in replicas.model.parameters() if isinstance(x, DTensor)]
    return [meshes[0].get_group(axis) for axis in range(meshes[0].ndim)] if meshes else []


def ignore_buffers(model: nn.Module, names: Iterable[str]) -> None:
    """Makes DDP ignore buffers when it wraps a model; see `leave_buffers`."""
    known = vars(model).get(IGNORED, ())
    if new := [name for name in names if name not in known]:
        setattr(model, IGNORED, [*known, *new])


def leave_buffers(wrapper: nn.Module, names: Iterable[str]) -> None:
    """Stops DDP from broadcasting buffers of the first process before each forward.

    A forward with broadcast buffers waits for all processes, even in an evaluation on one of them.
    """
    if isinstance(wrapper, DistributedDataParallel):
        wrapper.parameters_to_ignore.update(names)
        wrapper._assign_modules_buffers()
