"""Checks of what formats accept, dense floating tensors, and of what their methods return."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from chop.errors import ConfigError

M = TypeVar("M", bound=Callable[..., Any])
TAKING_TENSORS = {"__call__", "round", "encode", "saturates", "fitted"}
"""Methods of formats whose first argument must be a dense floating tensor."""


def check_tensor(x: Any, where: str) -> None:
    """Raises ConfigError unless `x` is a dense floating tensor."""
    if not isinstance(x, Tensor):
        received, fix = f"a {type(x).__name__}", "torch.as_tensor(x)"
    elif x.is_nested:
        received, fix = "a nested tensor", "each of x.unbind(), or x.to_padded_tensor(0.0)"
    elif x.layout is not torch.strided:
        received, fix = f"a tensor of layout {x.layout}", "x.to_dense()"
    elif x.is_complex():
        received, fix = f"a tensor of {x.dtype}", "torch.view_as_real(x)"
    elif not x.is_floating_point():
        received, fix = (
            f"a tensor of {x.dtype}",
            "x.dequantize()" if x.is_quantized else "x.float()",
        )
    else:
        return
    raise ConfigError(f"{where}: expected a dense floating tensor, got {received}; pass {fix}.")


def checking(method: M, name: str = "") -> M:
    """Wraps a method of a format with `check_tensor`, and checks the results of `round`."""
    is_rounding = (name or method.__name__) == "round"

    @functools.wraps(method)
    def checked(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        check_tensor(x, self.name)
        result = method(self, x, *args, **kwargs)
        if is_rounding and not (isinstance(result, Tensor) and result.shape == x.shape):
            received = tuple(result.shape) if isinstance(result, Tensor) else repr(result)
            raise ConfigError(
                f"{self.name}.round(): expected a tensor of shape {tuple(x.shape)}, got "
                f"{received!s:.60}."
            )
        return result

    return cast(M, checked)


def counting(method: M) -> M:
    """Wraps `bits` of a format, which returns a number."""

    @functools.wraps(method)
    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        if not isinstance(result, numbers.Real | torch.SymInt | torch.SymFloat):
            raise ConfigError(f"{self.name}.bits(): expected a number, got {result!r:.60}.")
        return result

    return cast(M, counted)
