"""Average pooling with `divisor_override`, expressed in operators that ONNX has."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

NAMES = (
    *("input", "kernel_size", "stride", "padding"),
    *("ceil_mode", "count_include_pad", "divisor_override"),
)
"""Argument names of `torch.nn.functional.avg_pool2d` and `avg_pool3d`."""
DIMENSIONS: dict[Callable[..., Tensor], int] = {F.avg_pool2d: 2, F.avg_pool3d: 3}


class WithoutDivisors(TorchFunctionMode):
    """Mode that replaces pooling with a divisor, which torch's exporter drops, by a scaled mean."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in DIMENSIONS:
            given = dict(zip(NAMES, args, strict=False)) | kwargs
            if given.get("divisor_override"):
                return _scaled_mean(func, given)
        return func(*args, **kwargs)


def _scaled_mean(pool: Callable[..., Tensor], given: dict[str, Any]) -> Tensor:
    """Returns window means, including zero padding, times window size over divisor."""
    dimensions = DIMENSIONS[pool]

    def sizes(name: str, default: Any) -> list[int]:
        value = given.get(name) or default
        values = [value] if isinstance(value, int) else list(value)
        return values * dimensions if len(values) == 1 else values

    kernel, padding = sizes("kernel_size", 1), sizes("padding", 0)
    stride = sizes("stride", kernel)
    beyond = [step - 1 if given.get("ceil_mode") else 0 for step in stride]
    around = [n for p, b in zip(padding, beyond, strict=True) for n in (p + b, p)][::-1]
    means = pool(F.pad(given["input"], around), kernel, stride)
    expected = pool(**given).shape[-dimensions:]
    for dim, size in enumerate(expected, start=-dimensions):
        means = means.narrow(dim, 0, size)
    scale: float = math.prod(kernel) / given["divisor_override"]
    return means * scale
