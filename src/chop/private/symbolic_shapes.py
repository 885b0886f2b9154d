"""Fence around torch's private API of symbolic shapes and fake tensors.

Known for torch 2.13. Every other file of the tracer takes these names from here, so that a new
version of torch changes one file; `tests/private/test_fences.py` fails first.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

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
    "size_functions",
]


def get_expression(size: Any) -> Any:
    """The sympy expression of a symbolic number, before it is simplified."""
    return size.node._expr


def fake_with_symbols(
    mode: FakeTensorMode, name: str, tensor: Tensor, dims: list[DimDynamic]
) -> FakeTensor:
    """Fake tensor whose dynamic dimensions are symbols.

    Args:
        mode: a fake mode with a shape environment.
        name: the source of the symbols.
        tensor: the example; only its shape, strides, dtype and device matter.
        dims: per dimension whether it is dynamic.
    """
    # Imported here since it costs a second, once per process.
    from torch._dynamo.source import ConstantSource

    context: StatelessSymbolicContext[Any, Any] = StatelessSymbolicContext(
        dynamic_sizes=dims, constraint_sizes=[None] * tensor.dim()
    )
    return mode.from_tensor(tensor.detach(), source=ConstantSource(name), symbolic_context=context)


def forget_shapes() -> None:
    """Empties torch's caches of answers about sizes, which keep every environment that was asked.

    They are caches of methods, with the environment as a part of the key.
    """
    for cached in (*vars(ShapeEnv).values(), _maybe_evaluate_static_worker):
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()


@contextmanager
def forgetting_traces() -> Iterator[None]:
    """Afterwards torch keeps nothing of what it traces inside: sizes, fake results and sources.

    Each of its exports leaves hundreds of kilobytes in caches that no later export asks. Finalizers
    hold the keys of the one of fake results, so that it is switched off. An environment of sizes
    holds fake tensors, whose sizes hold it through C++, which Python's collector does not see.
    """
    # Imported here since it costs a second, once per process.
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
