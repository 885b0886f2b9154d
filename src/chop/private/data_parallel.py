"""Fence around the private API of `DistributedDataParallel` and `fully_shard` (FSDP2).

Known for torch 2.13; `tests/private/test_fences.py` fails first where a name is gone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

IGNORED = "_ddp_params_and_buffers_to_ignore"
"""The attribute of a model with the names of what DDP leaves alone."""


class Replicas(NamedTuple):
    """A model that processes train together.

    Attributes:
        wrapper: the module that users call: of DDP, or the root of FSDP2.
        model: the module inside, with the paths of state dicts.
        is_sharded: true if parameters are whole during the forward only (FSDP2).
    """

    wrapper: nn.Module
    model: nn.Module
    is_sharded: bool


def has_process_group() -> bool:
    """Returns whether this process has joined others."""
    return dist.is_available() and dist.is_initialized()


def running_replicas() -> Replicas | None:
    """The model whose forward runs now under DDP or FSDP2; None outside of them."""
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
    """The model that users call by a module of DDP, or by the root of FSDP2."""
    if isinstance(wrapper, DistributedDataParallel):
        return Replicas(wrapper, wrapper.module, False)
    return Replicas(wrapper, wrapper, True)


def process_groups(replicas: Replicas) -> list[Any]:
    """The process groups over which a model is replicated or sharded, one after the other."""
    if isinstance(replicas.wrapper, DistributedDataParallel):
        return [replicas.wrapper.process_group]
    from torch.distributed.tensor import DTensor

    meshes = [x.device_mesh for x in replicas.model.parameters() if isinstance(x, DTensor)]
    return [meshes[0].get_group(axis) for axis in range(meshes[0].ndim)] if meshes else []


def ignore_buffers(model: nn.Module, names: Iterable[str]) -> None:
    """Has DDP leave buffers alone when it wraps a model; see `leave_buffers`."""
    known = vars(model).get(IGNORED, ())
    if new := [name for name in names if name not in known]:
        setattr(model, IGNORED, [*known, *new])


def leave_buffers(wrapper: nn.Module, names: Iterable[str]) -> None:
    """Keeps DDP from sending buffers of the first process to the others before each forward.

    A forward with such buffers waits for all processes, also an evaluation on one of them.
    """
    if isinstance(wrapper, DistributedDataParallel):
        wrapper.parameters_to_ignore.update(names)
        wrapper._assign_modules_buffers()
