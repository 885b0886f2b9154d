"""Fence around torch's private API of symbolic shapes and fake tensors.

Known for torch 2.13. Every other file of the tracer takes these names from here, so that a new
version of torch changes one file; `tests/private/test_fences.py` fails first.
"""

from typing import Any

from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import SLoc
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._python_dispatch import _disable_current_modes as outside_fake_mode
from torch.utils._sympy import functions as size_functions
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from chop.private.torch_api import FakeTensorMode

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
    "expression_of",
    "fake_with_symbols",
    "in_kernel_invocation_manager",
    "int_oo",
    "outside_fake_mode",
    "size_functions",
]


def expression_of(size: Any) -> Any:
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
