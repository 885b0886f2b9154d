"""Operator calls with special handling: custom operators, numpy arrays, aliased results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chop.capture.recording.graph_break import MissingFakeKernelError
from chop.captured.nodes.targets import mutates_input
from chop.private.symbolic_shapes import outside_fake_mode
from chop.private.torch_api import OVERLOADS

# These convert a tensor to a Python value, which fake tensors do not have.
DATA_DEPENDENT_METHODS = frozenset(
    {
        *("__bool__", "__int__", "__float__", "__complex__", "__index__", "__nonzero__"),
        *("__contains__", "__array__", "tolist", "numpy"),
    }
)

_OWN_LIBRARIES = ("aten", "prims", "prim")
_CONSTRUCTORS = (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor)


def call_on_fakes(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls an operator on fake tensors.

    Raises:
        MissingFakeKernelError: an operator of another library has no fake kernel.
    """
    try:
        return function(*args, **kwargs)
    except Exception as error:
        if _is_custom(function):
            raise MissingFakeKernelError(function) from error
        raise


def _is_custom(function: Any) -> bool:
    library, _, _ = str(function).partition(".")
    return isinstance(function, OVERLOADS) and library not in _OWN_LIBRARIES


def replace_numpy_arrays(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Replaces a numpy array in the arguments of a tensor factory by a constant tensor.

    As outside of a recording, `torch.as_tensor` shares its memory with the array and other
    factories copy it.
    """
    if function not in _CONSTRUCTORS:
        return function, args, kwargs
    named = [name for name in ("data", "obj") if isinstance(kwargs.get(name), np.ndarray)]
    args = (*args, *(kwargs[name] for name in named))
    if not any(isinstance(arg, np.ndarray) for arg in args):
        return function, args, kwargs
    kwargs = {name: value for name, value in kwargs.items() if name not in named}
    with outside_fake_mode():
        args = tuple(torch.as_tensor(a) if isinstance(a, np.ndarray) else a for a in args)
    if function is Tensor.new_tensor:
        like, args = args[0], args[1:]
        kwargs = {"dtype": like.dtype, "device": like.device, **kwargs}
    if function is not torch.as_tensor:
        kwargs = {"copy": True, **kwargs}
        function = torch.asarray
    return function, args, kwargs


def contains_tensor(value: Any) -> bool:
    """Returns whether a result is a tensor, or a tuple or list that contains one."""
    if isinstance(value, tuple | list):
        return any(map(contains_tensor, value))
    return isinstance(value, Tensor)


def alias_if_input(func: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> Any:
    """Returns an alias of a result that is one of the arguments unchanged.

    `x.float()` returns `x` itself while `x` is float32. If both were one node, every later reader
    of `x` would read the float32 copy after `model.half()`.
    """
    unchanged = isinstance(result, Tensor) and any(result is value for value in args)
    if unchanged and not mutates_input(func) and "out" not in kwargs:
        return torch.ops.aten.alias(result)
    return result
