"""Inputs of formats: dense floating tensors, and one error for everything else."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from chop.errors import ConfigError

M = TypeVar("M", bound=Callable[..., Any])
TAKING_TENSORS = {"__call__", "round", "encode", "saturates", "fitted"}
"""Methods of formats whose first argument has to be a dense floating tensor."""


def check_tensor(x: Any, where: str) -> None:
    """Raises ConfigError unless `x` is a dense floating tensor: no format rounds anything else."""
    if not isinstance(x, Tensor):
        found, way = f"a {type(x).__name__}", "torch.as_tensor(x)"
    elif x.is_nested:
        found, way = "a nested tensor", "each of x.unbind(), or x.to_padded_tensor(0.0)"
    elif x.layout is not torch.strided:
        found, way = f"a tensor of layout {x.layout}", "x.to_dense()"
    elif x.is_complex():
        found, way = f"a tensor of {x.dtype}", "torch.view_as_real(x)"
    elif not x.is_floating_point():
        found, way = f"a tensor of {x.dtype}", "x.dequantize()" if x.is_quantized else "x.float()"
    else:
        return
    raise ConfigError(f"{where}: expected a dense floating tensor, got {found}; pass {way}.")


def checking(method: M) -> M:
    """The same method of a format for dense floating tensors alone; others raise ConfigError."""

    @functools.wraps(method)
    def checked(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        check_tensor(x, self.name)
        return method(self, x, *args, **kwargs)

    return cast(M, checked)
