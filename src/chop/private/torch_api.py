"""Fence around torch's private API outside symbolic shapes; cheap to import.

Known for torch 2.13; `tests/private/test_fences.py` fails first where a name is gone.
"""

import linecache
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch import _check as check_sizes
from torch._C._dynamo import eval_frame
from torch._guards import detect_fake_mode
from torch._prims_common import is_non_overlapping_and_dense_or_false as fills_its_memory
from torch._subclasses.fake_tensor import FakeTensorMode, is_fake
from torch.autograd import forward_ad
from torch.fx.graph_module import _loader as sources
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.conv import _ConvNd as Convolution
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

F = TypeVar("F", bound=Callable[..., Any])

__all__ = [
    "ASSERT",
    "BATCH_NORMS",
    "DROPOUTS",
    "IS_ALL_TRUE",
    "NN_FUNCTIONS",
    "NOISY_LOGGERS",
    "OVERLOADS",
    "PACK_PADDED_SEQUENCE",
    "PAD_PACKED_SEQUENCE",
    "SET_GRAD_ENABLED",
    "BatchNorm",
    "Convolution",
    "DisableTorchFunction",
    "FakeTensorMode",
    "OpOverload",
    "PathCodeGen",
    "StorageWeakRef",
    "TorchDispatchMode",
    "attention_choice",
    "autocast_options",
    "check_sizes",
    "constant_when_compiled",
    "detect_fake_mode",
    "enter_autocast_region",
    "exit_autocast_region",
    "fills_its_memory",
    "forgetting_sources",
    "get_schema",
    "get_schemas",
    "global_forward_hooks",
    "gradient_hooks",
    "has_bfloat16_products",
    "has_int8_products",
    "has_tiles",
    "is_batched",
    "is_dispatch_observed",
    "is_fake",
    "is_in_backward",
    "is_transformed",
    "is_view",
    "linear_pointwise",
    "multiply_int8",
    "never_compiled",
    "python_of_script",
    "set_target",
    "single_overload",
    "source_lives_with",
    "storage_id",
    "tree_leaves",
    "without_dispatch_modes",
    "write_count",
    "writes_plain_code",
]

OVERLOADS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
SET_GRAD_ENABLED = torch._C._set_grad_enabled
PACK_PADDED_SEQUENCE = torch._C._VariableFunctions._pack_padded_sequence
PAD_PACKED_SEQUENCE = torch._C._VariableFunctions._pad_packed_sequence
DROPOUTS = nn.modules.dropout._DropoutNd
ASSERT = torch._assert
IS_ALL_TRUE = torch._is_all_true
NN_FUNCTIONS: Any = torch._C._nn
"""The compiled functions of `torch.nn.functional`."""
OpOverload = torch._ops.OpOverload
BATCH_NORMS = nn.modules.batchnorm._NormBase
NOISY_LOGGERS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")
"""Loggers that print an error inside a fake kernel, which the tracer handles."""
DisableTorchFunction = torch._C.DisableTorchFunction
without_dispatch_modes = torch._C._DisableTorchDispatch
"""A context in which no dispatch mode sees what is called."""
enter_autocast_region: Any = torch.amp.autocast_mode._enter_autocast
exit_autocast_region: Any = torch.amp.autocast_mode._exit_autocast


class PathCodeGen(fx.graph.CodeGen):
    """Code generator of torch.fx that lets a class below give nodes other targets for a while."""

    def retargeted(self, nodes: Iterable[fx.Node]) -> AbstractContextManager[None]:
        """A context in which nodes have the targets that the code shall name."""
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


def source_lives_with(generated: Callable[..., Any]) -> None:
    """Lets torch and `linecache` forget the source of a generated function together with its code.

    torch.fx keeps the source of every graph that was ever compiled, for tracebacks.

    Args:
        generated: a function that torch.fx has compiled.
    """
    code = generated.__code__
    if code.co_filename in sources.eval_cache:
        weakref.finalize(code, _forget_source, code.co_filename).atexit = False


def _forget_source(filename: str) -> None:
    sources.eval_cache.pop(filename, None)
    linecache.cache.pop(filename, None)


@contextmanager
def forgetting_sources() -> Iterator[None]:
    """Afterwards torch and `linecache` know no source of what torch.fx has compiled inside."""
    known = set(sources.eval_cache)
    try:
        yield
    finally:
        for filename in sources.eval_cache.keys() - known:
            _forget_source(filename)


def storage_id(tensor: Tensor) -> int:
    """Identity of a tensor's storage; unlike an address it tells fake storages apart."""
    identity: int = tensor.untyped_storage()._cdata
    return identity


def write_count(tensor: Tensor) -> int:
    """How often autograd has seen a tensor's memory written.

    Raises:
        RuntimeError: a tensor of inference mode, which counts nothing.
    """
    return tensor._version


def is_view(tensor: Tensor) -> bool:
    """Whether autograd takes a tensor for a view of another."""
    return tensor._is_view()


def get_schema(overload: Any) -> Any:
    """Arguments and results that an operator's overload declares; None for other functions."""
    return getattr(overload, "_schema", None)


def get_schemas(operator: Any) -> list[Any]:
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


def gradient_hooks(tensor: Tensor) -> dict[int, Any]:
    """Hooks on the gradient of a tensor, by key; the dict that autograd reads, or an empty one."""
    hooks: dict[int, Any] | None = tensor._backward_hooks
    return {} if hooks is None else hooks


def is_dispatch_observed() -> bool:
    """Whether a dispatch or function mode, `torch.jit.trace` or the profiler sees each operator."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or torch._C._get_tracing_state() is not None
        or torch._C._autograd._profiler_enabled()
    )


def python_of_script(function: Any) -> Any:
    """The Python that `torch.jit.script` or `torch.jit.trace` compiled; None if it is not known."""
    return getattr(function, "_torchdynamo_inline", None)


def is_transformed() -> bool:
    """Whether a transform of `torch.func` or a forward-mode level surrounds the call."""
    # Both are what TorchDynamo follows too.
    level: int = forward_ad._current_level
    return level >= 0 or torch._C._are_functorch_transforms_active()


def constant_when_compiled(function: F) -> F:
    """`torch.compiler.assume_constant_result`, which imports the compiler, without that import.

    The function runs while a graph is compiled, on the real tensors.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def never_compiled(function: F) -> F:
    """Keeps `torch.compile` from compiling a function by itself, without its import."""
    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
    return function


def is_batched(x: Tensor) -> bool:
    """Returns whether a tensor is one of several in `torch.vmap`."""
    return bool(torch._C._functorch.is_batchedtensor(x))


def is_in_backward() -> bool:
    """Returns whether this thread runs a backward pass, in which checkpoints recompute."""
    task: int = torch._C._current_graph_task_id()
    return task != -1


def has_int8_products() -> bool:
    """Whether the CPU has instructions for products of 8-bit integers (VNNI)."""
    return torch.cpu._is_vnni_supported()


def has_tiles() -> bool:
    """Whether the CPU multiplies tiles of 8-bit integers and of bfloat16 (AMX)."""
    return torch.cpu._is_amx_tile_supported()


def has_bfloat16_products() -> bool:
    """Whether the CPU has instructions for products of bfloat16 (AVX-512 or AMX)."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def multiply_int8(a: Tensor, b: Tensor) -> Tensor:
    """Product (m, n) in int32 of int8 matrices (m, k) and (k, n)."""
    return torch._int_mm(a, b)


def linear_pointwise(
    x: Tensor, weight: Tensor, bias: Tensor | None, name: str, algorithm: str
) -> Tensor:
    """oneDNN's linear layer with an activation of this name, in one call."""
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, name, [], algorithm)
    return y


def attention_choice(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> int:
    """The number in `SDPBackend` of the kernel that torch takes for fused attention."""
    return torch._fused_sdp_choice(q, k, v, attn_mask=mask, is_causal=is_causal)
