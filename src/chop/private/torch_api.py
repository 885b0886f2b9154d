"""Fence around torch's private API outside symbolic shapes; cheap to import.

Known for torch 2.13; `tests/private/test_fences.py` fails first where a name is gone.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, fx, nn
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
    "PathCodeGen",
    "TorchDispatchMode",
    "autocast_options",
    "detect_fake_mode",
    "enter_autocast_region",
    "exit_autocast_region",
    "global_forward_hooks",
    "is_dispatch_observed",
    "is_fake",
    "schemas_of",
    "set_target",
    "single_overload",
    "storage_id",
    "tree_leaves",
    "writes_plain_code",
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


class PathCodeGen(fx.graph.CodeGen):
    """Code generator of torch.fx that lets a class below give nodes other targets for a while."""

    def retargeted(self, nodes: Iterable[fx.Node]) -> AbstractContextManager[None]:
        """A context in which nodes have the targets that the code shall name.

        Args:
            nodes: of the graph, in order. The text of a node is its name in the code.
        """
        raise NotImplementedError

    def _gen_python_code(
        self, nodes: Any, root_module: str, namespace: Any, **settings: Any
    ) -> Any:
        namespace.create_name(root_module, None)  # no node may take the place of the module
        with self.retargeted(nodes):
            return super()._gen_python_code(nodes, root_module, namespace, **settings)


def set_target(node: fx.Node, target: Any) -> None:
    """Gives a node a target for the time that code is written; no edit of its graph."""
    object.__setattr__(node, "target", target)


def writes_plain_code(graph: fx.Graph) -> bool:
    """Whether a graph has the code generator that every new graph has."""
    return type(graph._codegen) is fx.graph.CodeGen


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
