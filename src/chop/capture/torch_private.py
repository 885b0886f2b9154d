"""Fence around torch's private API outside symbolic shapes; cheap to import.

Known for torch 2.13; `tests/capture/test_private_api.py` fails first where a name is gone.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode, is_fake
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = [
    "BATCH_NORMS",
    "DROPOUTS",
    "NOISY_LOGGERS",
    "OVERLOADS",
    "PACK_PADDED_SEQUENCE",
    "PAD_PACKED_SEQUENCE",
    "SET_GRAD_ENABLED",
    "DisableTorchFunction",
    "FakeTensorMode",
    "TorchDispatchMode",
    "autocast_options",
    "detect_fake_mode",
    "enter_autocast_region",
    "exit_autocast_region",
    "global_forward_hooks",
    "is_dispatch_observed",
    "is_fake",
    "schemas_of",
    "single_overload",
    "storage_id",
    "tree_leaves",
]

OVERLOADS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
SET_GRAD_ENABLED = torch._C._set_grad_enabled
PACK_PADDED_SEQUENCE = torch._C._VariableFunctions._pack_padded_sequence
PAD_PACKED_SEQUENCE = torch._C._VariableFunctions._pad_packed_sequence
DROPOUTS = nn.modules.dropout._DropoutNd
BATCH_NORMS = nn.modules.batchnorm._NormBase
NOISY_LOGGERS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")
"""Loggers that print an error inside a fake kernel, which the tracer handles."""
DisableTorchFunction = torch._C.DisableTorchFunction
enter_autocast_region: Any = torch.amp.autocast_mode._enter_autocast
exit_autocast_region: Any = torch.amp.autocast_mode._exit_autocast


def storage_id(tensor: Tensor) -> int:
    """Identity of a tensor's storage; unlike an address it tells fake storages apart."""
    identity: int = tensor.untyped_storage()._cdata
    return identity


def schemas_of(operator: Any) -> list[Any]:
    """Schemas of an operator's overloads."""
    if isinstance(operator, torch._ops.OpOverload):
        return [operator._schema]
    return list(operator._schemas.values())


def single_overload(operator: Any) -> Any:
    """The overload of an operator that has one only; any other callable as it is."""
    if isinstance(operator, torch._ops.OpOverloadPacket) and len(operator.overloads()) == 1:
        return getattr(operator, operator.overloads()[0])
    return operator


def autocast_options(region: Any) -> tuple[torch.dtype, bool, bool]:
    """Resolved dtype, `cache_enabled` and `enabled` of a `torch.autocast`."""
    return region.fast_dtype, region._cache_enabled, region._enabled


def global_forward_hooks() -> list[Any]:
    """Hooks that see the inputs and results of every module."""
    module = nn.modules.module
    return [*module._global_forward_pre_hooks.values(), *module._global_forward_hooks.values()]


def is_dispatch_observed() -> bool:
    """Whether a dispatch or function mode, `torch.jit.trace` or the profiler sees each operator."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or torch._C._get_tracing_state() is not None
        or torch._C._autograd._profiler_enabled()
    )
