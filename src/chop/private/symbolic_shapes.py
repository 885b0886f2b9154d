"""Private API of torch's symbolic shapes and fake tensors.

Tested with torch 2.13. All files of the tracer import these names from here, so that a new torch
version affects one file; `tests/private/test_fences.py` fails first.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import SLoc
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
    _maybe_evaluate_static_worker,
)
from torch.utils._python_dispatch import _disable_current_modes as outside_fake_mode
from torch.utils._sympy import functions as size_functions
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from chop.private.torch_api import FakeTensorMode, forgetting_sources

__all__ = [
    "DimDynamic",
    "FakeTensor",
    "PythonPrinter",
    "SLoc",
    "ShapeEnv",
    "StatelessSymbolicContext",
    "SymNode",
    "ValueRanges",
    "bound_sympy",
    "enable_python_dispatcher",
    "fake_with_symbols",
    "forget_shapes",
    "forgetting_traces",
    "get_expression",
    "in_kernel_invocation_manager",
    "int_oo",
    "outside_fake_mode",
    "recurrent_shapes",
    "size_functions",
]


def get_expression(size: Any) -> Any:
    """Returns the sympy expression of a symbolic number before simplification."""
    return size.node._expr


def fake_with_symbols(
    mode: FakeTensorMode, name: str, tensor: Tensor, dims: list[DimDynamic]
) -> FakeTensor:
    """Returns a fake tensor whose dynamic dimensions are symbols.

    Args:
        mode: fake mode with a shape environment.
        name: source name of the symbols.
        tensor: example. Only shape, strides, dtype and device are used.
        dims: dynamic status of each dimension.
    """
    # Imported lazily, because it takes a second per process.
    from torch._dynamo.source import ConstantSource

    context: StatelessSymbolicContext[Any, Any] = StatelessSymbolicContext(
        dynamic_sizes=dims, constraint_sizes=[None] * tensor.dim()
    )
    return mode.from_tensor(tensor.detach(), source=ConstantSource(name), symbolic_context=context)


def forget_shapes() -> None:
    """Clears torch's caches of size queries, which keep all shape environments alive.

    They are method caches with the environment as a part of the key.
    """
    for cached in (*vars(ShapeEnv).values(), _maybe_evaluate_static_worker):
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()


@contextmanager
def forgetting_traces() -> Iterator[None]:
    """Context manager that frees torch's caches of inner traces: sizes, results, sources.

    Each export of torch leaves hundreds of kilobytes in caches that later exports do not use. The
    cache of fake results is disabled, because finalizers hold its keys. A shape environment refers
    to fake tensors, whose sizes refer back to it through C++, invisible to Python's garbage
    collector.
    """
    # Imported lazily, because it takes a second per process.
    from torch._dynamo import config

    made: list[ShapeEnv] = []
    make = ShapeEnv.__init__

    def noting(self: ShapeEnv, *arguments: Any, **named: Any) -> None:
        made.append(self)
        make(self, *arguments, **named)

    with forgetting_sources(), config.patch(fake_tensor_cache_enabled=False):
        try:
            with patch.object(ShapeEnv, "__init__", noting):
                yield
        finally:
            for environment in made:
                environment.tracked_fakes = None
            forget_shapes()


@contextmanager
def recurrent_shapes() -> Iterator[None]:
    """Context manager in which traces compute only the shapes of `nn.LSTM` and `nn.GRU`.

    torch's decompositions unroll the loop over time on fake tensors, three times for an ONNX file.
    A bidirectional GRU of 40 steps takes 17 seconds, although the file has a single node for it.
    """
    # Imported lazily, as `torch._decomp` registers all decompositions.
    from torch._decomp import decomposition_table

    with ExitStack() as restored:
        for op in (torch.ops.aten.lstm.input, torch.ops.aten.gru.input):
            kernels = dict.fromkeys(op.py_kernels, _recurrent_outputs)
            restored.callback(op._dispatch_cache.clear)
            restored.enter_context(patch.dict(op.py_kernels, kernels))
            restored.enter_context(patch.dict(decomposition_table, {op: _recurrent_outputs}))
            op._dispatch_cache.clear()
        yield


def _recurrent_outputs(x: Tensor, states: Any, weights: Any, *settings: Any) -> tuple[Tensor, ...]:
    """Returns empty outputs of an LSTM or GRU, with the arguments of `aten.lstm` and `aten.gru`."""
    *_, is_bidirectional, batch_first = settings
    inner = x.transpose(0, 1) if batch_first else x
    # The second weight multiplies the output of the step before.
    width = weights[1].shape[1] * (1 + is_bidirectional)
    out = inner.new_empty(*inner.shape[:-1], width)
    states = states if isinstance(states, list | tuple) else (states,)
    return out.transpose(0, 1) if batch_first else out, *map(torch.empty_like, states)
