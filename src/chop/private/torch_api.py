"""Private API of torch except symbolic shapes; cheap to import.

Tested with torch 2.13; `tests/private/test_fences.py` fails first if a name is missing.
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
    "BATCH_NORMS_OVER_ROWS",
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
    "is_batched",
    "is_dispatch_observed",
    "is_fake",
    "is_in_backward",
    "is_transformed",
    "is_view",
    "linear_pointwise",
    "multiply_int8",
    "never_compiled",
    "onednn_multiplies_bfloat16",
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
"""Compiled functions of `torch.nn.functional`."""
OpOverload = torch._ops.OpOverload
BATCH_NORMS = nn.modules.batchnorm._NormBase
BATCH_NORMS_OVER_ROWS = nn.modules.batchnorm._BatchNorm
"""Batch normalization without instance normalization, which normalizes each row alone."""
NOISY_LOGGERS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")
"""Loggers that report errors inside fake kernels, which the tracer handles."""
DisableTorchFunction = torch._C.DisableTorchFunction
without_dispatch_modes = torch._C._DisableTorchDispatch
"""Context manager that disables dispatch modes."""
enter_autocast_region: Any = torch.amp.autocast_mode._enter_autocast
exit_autocast_region: Any = torch.amp.autocast_mode._exit_autocast


class PathCodeGen(fx.graph.CodeGen):
    """Code generator of torch.fx that lets a subclass change node targets temporarily."""

    def retargeted(self, nodes: Iterable[fx.Node]) -> AbstractContextManager[None]:
        """Context manager in which nodes have the targets for the generated code."""
        raise NotImplementedError

    def _gen_python_code(
        self, nodes: Any, root_module: str, namespace: Any, **settings: Any
    ) -> Any:
        namespace.create_name(root_module, None)  # reserves the name of the module
        with self.retargeted(nodes):
            return super()._gen_python_code(nodes, root_module, namespace, **settings)


def set_target(node: fx.Node, target: Any) -> None:
    """Sets a node's target during code generation without counting as an edit."""
    object.__setattr__(node, "target", target)


def writes_plain_code(graph: fx.Graph) -> bool:
    """Returns whether a graph has the default code generator."""
    return type(graph._codegen) is fx.graph.CodeGen


def source_lives_with(generated: Callable[..., Any]) -> None:
    """Frees the source of a generated function in torch and `linecache` together with its code.

    torch.fx keeps the source of each compiled graph for tracebacks.

    Args:
        generated: function compiled by torch.fx.
    """
    code = generated.__code__
    if code.co_filename in sources.eval_cache:
        weakref.finalize(code, _forget_source, code.co_filename).atexit = False


def _forget_source(filename: str) -> None:
    sources.eval_cache.pop(filename, None)
    linecache.cache.pop(filename, None)


@contextmanager
def forgetting_sources() -> Iterator[None]:
    """Context manager after which torch and `linecache` keep no sources of inner compilations."""
    known = set(sources.eval_cache)
    try:
        yield
    finally:
        for filename in sources.eval_cache.keys() - known:
            _forget_source(filename)


def storage_id(tensor: Tensor) -> int:
    """Returns the identity of a tensor's storage, which also distinguishes fake storages."""
    identity: int = tensor.untyped_storage()._cdata
    return identity


def write_count(tensor: Tensor) -> int:
    """Returns autograd's write counter of a tensor's memory.

    Raises:
        RuntimeError: if it is an inference-mode tensor, which has no counter.
    """
    return tensor._version


def is_view(tensor: Tensor) -> bool:
    """Returns whether autograd regards a tensor as a view of another."""
    return tensor._is_view()


def get_schema(overload: Any) -> Any:
    """Returns the arguments and results of an operator overload; None for other functions."""
    return getattr(overload, "_schema", None)


def get_schemas(operator: Any) -> list[Any]:
    """Returns the schemas of an operator's overloads."""
    if isinstance(operator, torch._ops.OpOverload):
        return [operator._schema]
    return list(operator._schemas.values())


def single_overload(operator: Any) -> Any:
    """Returns the only overload of an operator; other callables unchanged."""
    if isinstance(operator, torch._ops.OpOverloadPacket) and len(operator.overloads()) == 1:
        return getattr(operator, operator.overloads()[0])
    return operator


def autocast_options(region: Any) -> tuple[torch.dtype, bool, bool]:
    """Returns dtype, `cache_enabled` and `enabled` of a `torch.autocast`."""
    return region.fast_dtype, region._cache_enabled, region._enabled


def global_forward_hooks() -> list[Any]:
    """Returns the hooks that observe inputs and outputs of all modules."""
    module = nn.modules.module
    return [*module._global_forward_pre_hooks.values(), *module._global_forward_hooks.values()]


def gradient_hooks(tensor: Tensor) -> dict[int, Any]:
    """Returns a tensor's gradient hooks by key: the dict used by autograd, or an empty one."""
    hooks: dict[int, Any] | None = tensor._backward_hooks
    return {} if hooks is None else hooks


def is_dispatch_observed() -> bool:
    """Returns whether a dispatch or function mode, `torch.jit.trace` or the profiler is active."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or torch._C._get_tracing_state() is not None
        or torch._C._autograd._profiler_enabled()
    )


def python_of_script(function: Any) -> Any:
    """Returns the Python source of a scripted or traced function, or None if unknown."""
    return getattr(function, "_torchdynamo_inline", None)


def is_transformed() -> bool:
    """Returns whether a `torch.func` transform or a forward-mode level is active."""
    # TorchDynamo follows the same two attributes.
    level: int = forward_ad._current_level
    return level >= 0 or torch._C._are_functorch_transforms_active()


def constant_when_compiled(function: F) -> F:
    """Equivalent of `torch.compiler.assume_constant_result` without importing the compiler.

    The function runs on the real tensors while a graph is compiled.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def never_compiled(function: F) -> F:
    """Prevents `torch.compile` from compiling a function, without importing the compiler."""
    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
    return function


def is_batched(x: Tensor) -> bool:
    """Returns whether a tensor is batched by `torch.vmap`."""
    return bool(torch._C._functorch.is_batchedtensor(x))


def is_in_backward() -> bool:
    """Returns whether this thread runs a backward pass, in which checkpoints recompute."""
    task: int = torch._C._current_graph_task_id()
    return task != -1


def has_int8_products() -> bool:
    """Returns whether the CPU has 8-bit integer dot products (VNNI)."""
    return torch.cpu._is_vnni_supported()


def has_bfloat16_products() -> bool:
    """Returns whether the CPU has bfloat16 products (AVX-512 or AMX)."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def onednn_multiplies_bfloat16() -> bool:
    """Returns whether oneDNN computes bfloat16 products on this CPU, possibly by float32 ones."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def multiply_int8(a: Tensor, b: Tensor) -> Tensor:
    """Returns the int32 product (m, n) of int8 matrices (m, k) and (k, n)."""
    return torch._int_mm(a, b)


def linear_pointwise(
    x: Tensor, weight: Tensor, bias: Tensor | None, name: str, algorithm: str
) -> Tensor:
    """Computes oneDNN's linear layer with a fused activation."""
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, name, [], algorithm)
    return y


def attention_choice(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> int:
    """Returns the `SDPBackend` number of torch's kernel for fused attention."""
    return torch._fused_sdp_choice(q, k, v, attn_mask=mask, is_causal=is_causal)
