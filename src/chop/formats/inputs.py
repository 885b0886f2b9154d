"""Input checks of formats, which accept dense floating tensors."""

from __future__ import annotations

import functools
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


def checking(method: M) -> M:
    """Wraps a method of a format with `check_tensor`."""

    @functools.wraps(method)
    def checked(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        check_tensor(x, self.name)
        return method(self, x, *args, **kwargs)

    return cast(M, checked)
