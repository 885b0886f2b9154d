"""Registry of fake-quantize kernels by device, and the functions that call them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.formats import Gradient, NumberFormat, from_key
from chop.formats.operators import OPERATORS
from chop.formats.reference import round_by
from chop.private.torch_api import is_dispatch_observed, is_transformed


class Line(Protocol):
    """Loop over contiguous elements."""

    def __call__(self, x: int, out: int, count: int, mask: int | None = None) -> int:
        """Rounds `count` elements; returns 0, or another number if nothing is written.

        Args:
            x: address of the input.
            out: address of the result.
            count: number of elements.
            mask: address of a boolean for each element that receives `saturates(x)`, or None.
        """


def _reference(number_format: NumberFormat, x: Tensor) -> Tensor:
    return number_format.round(x)


def _no_line(number_format: NumberFormat, x: Tensor) -> Line | None:
    return None


@dataclass(frozen=True)
class Kernel:
    """Fake-quantize kernel for one device type.

    Attributes:
        name: name in messages and tables.
        device: device type.
        run: (x, format, out, mask, scales): writes the rounded `x` to `out`, which may be `x`, and
            returns True. Returns False without writing if the kernel does not support the inputs.
            `mask`: None or a boolean tensor that receives `saturates(x)`. `scales`: None or
            float32 (n,), used instead of the scales that the format would compute.
        line: (format, x): fast path for small contiguous tensors that are rounded element by
            element, or None.
        reference: readable implementation that defines the result.
        tolerance: largest difference from the reference; 0 means bit-identical.
    """

    name: str
    device: str
    run: Callable[[Tensor, NumberFormat, Tensor, Tensor | None, Tensor | None], bool]
    line: Callable[[NumberFormat, Tensor], Line | None] = _no_line
    reference: Callable[[NumberFormat, Tensor], Tensor] = _reference
    tolerance: float = 0.0


KERNELS: dict[str, Kernel] = {}
"""Registered kernels by device type."""


def register(kernel: Kernel) -> Kernel:
    """Registers a kernel as the fake-quantize implementation of its device."""

    def implementation(x: Tensor, key: str) -> Tensor:
        return _rounded(x, from_key(key), torch.empty_like(x))

    def marking(x: Tensor, key: str) -> tuple[Tensor, Tensor]:
        return fake_quantize_marking(x, from_key(key))

    OPERATORS.impl("fake_quantize", implementation, kernel.device.upper())
    OPERATORS.impl("fake_quantize_marking", marking, kernel.device.upper())
    KERNELS[kernel.device] = kernel
    return kernel


@torch.no_grad()
def fake_quantize(
    x: Tensor,
    number_format: NumberFormat,
    out: Tensor | None = None,
    scales: Tensor | None = None,
) -> Tensor:
    """Rounds a tensor to a number format with the device's kernel, without a gradient.

    Devices without a kernel use the readable reference, `number_format.round(x)`.

    Args:
        x: floating-point tensor of any shape.
        number_format: number format to round to.
        out: tensor of the shape, dtype and device of `x` to write to; may be `x` itself. None
            allocates one like `torch.empty_like(x)`.
        scales: float32 (n,), positive, used instead of the scales that the format computes or
            stores. None uses the format's scales.
    Returns: `out` or the new tensor.

    Raises:
        ConfigError: if `out` differs from `x` in shape, dtype or device.

    Example:
        >>> from chop.formats import Integer
        >>> x = torch.tensor([0.26, 9.0])
        >>> fake_quantize(x, Integer(4, 1), out=x)
        tensor([0.5000, 3.5000])
    """
    if out is None:
        out = torch.empty_like(x)
    elif (out.shape, out.dtype, out.device) != (x.shape, x.dtype, x.device):
        raise ConfigError(
            f"out: expected {tuple(x.shape)} {x.dtype} on {x.device}, got {tuple(out.shape)} "
            f"{out.dtype} on {out.device}."
        )
    return _rounded(x, number_format, out, scales)


def fake_quantize_directly(x: Tensor, number_format: NumberFormat, gradient: Gradient) -> Tensor:
    """Returns `number_format(x, gradient)`, bypassing PyTorch's dispatcher if nothing observes it.

    The dispatcher takes as long as rounding a small tensor.
    """
    if is_followed(x):
        return number_format(x, gradient)
    out, kernel = torch.empty_like(x), KERNELS.get(x.device.type)
    line = None if kernel is None else kernel.line(number_format, x)
    # A line that fails has written nothing, so the general path can start over.
    if line is None or line(x.data_ptr(), out.data_ptr(), x.numel()) != 0:
        return _rounded(x, number_format, out)
    return out


def is_followed(x: Tensor) -> bool:
    """Returns True if autograd, a compiler, a tracer, a mode or a transform must see the call."""
    return (
        type(x) is not Tensor
        or (x.requires_grad and torch.is_grad_enabled())
        or torch.compiler.is_compiling()
        or is_transformed()
        or is_dispatch_observed()
        or x.is_neg()  # a lazy negation: the memory holds the values with the other sign
    )


def is_bias_followed(bias: Tensor | None) -> bool:
    """Returns True if autograd or a subclass must see the bias, or its sign is lazy."""
    return bias is not None and (
        type(bias) not in (Tensor, torch.nn.Parameter)
        or (bias.requires_grad and torch.is_grad_enabled())
        or bias.is_neg()
    )


def _rounded(
    x: Tensor, number_format: NumberFormat, out: Tensor, scales: Tensor | None = None
) -> Tensor:
    kernel = KERNELS.get(x.device.type)
    if kernel is not None and kernel.run(x, number_format, out, None, scales):
        return out
    if scales is None:
        return out.copy_(number_format.round(x))
    layout = number_format.layout()
    assert layout is not None
    return out.copy_(round_by(layout.with_scales(scales), x))


@torch.no_grad()
def fake_quantize_marking(x: Tensor, number_format: NumberFormat) -> tuple[Tensor, Tensor]:
    """Returns the rounded values and the saturation mask, in one pass if a kernel supports it.

    Args:
        x: floating-point tensor of any shape.
        number_format: number format to round to.
    Returns: `number_format.round(x)` and the boolean `number_format.saturates(x)`, both laid out
        like `torch.empty_like(x)`.
    """
    out, mask = torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)
    kernel = KERNELS.get(x.device.type)
    if kernel is None or not kernel.run(x, number_format, out, mask, None):
        fake_quantize(x, number_format, out)
        mask.copy_(number_format.saturates(x))
    return out, mask
