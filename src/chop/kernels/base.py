"""Kernel: a fast implementation of a readable reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.formats import Gradient, NumberFormat, from_key
from chop.formats.base import OPERATORS
from chop.formats.reference import round_by
from chop.private.torch_api import is_dispatch_observed, is_transformed

Line = Callable[[int, int, int], int]
"""Rounds so many elements from one address to another, and returns 0; else nothing is written."""


def _reference(number_format: NumberFormat, x: Tensor) -> Tensor:
    return number_format.round(x)


def _no_line(number_format: NumberFormat, x: Tensor) -> Line | None:
    return None


@dataclass(frozen=True)
class Kernel:
    """A fake-quantizer for one kind of device.

    Attributes:
        name: for messages and tables.
        device: the device type that it runs on.
        run: (x, format, out, mask, scales): writes the rounded `x` to `out`, which may be `x`, and
            returns True; or False if it cannot take them, and nothing is written. `mask` is None,
            or boolean and takes `saturates(x)`; `scales` is None, or float32 (n,) and stands for
            the scales that the format would find.
        line: (format, x): the short way for small tensors, where elements of `x` can be rounded
            one after the other to memory that lies as `x` does; else None.
        reference: what it must equal.
        tolerance: largest difference from the reference; 0 means bit for bit.
    """

    name: str
    device: str
    run: Callable[[Tensor, NumberFormat, Tensor, Tensor | None, Tensor | None], bool]
    line: Callable[[NumberFormat, Tensor], Line | None] = _no_line
    reference: Callable[[NumberFormat, Tensor], Tensor] = _reference
    tolerance: float = 0.0


KERNELS: dict[str, Kernel] = {}
"""The kernels by device type."""


def register(kernel: Kernel) -> Kernel:
    """Makes a kernel the implementation of chop's fake-quantizers on its device."""

    def implementation(x: Tensor, key: str) -> Tensor:
        return _rounded(x, from_key(key), torch.empty_like(x))

    def marking(x: Tensor, key: str) -> tuple[Tensor, Tensor]:
        return fake_quantize_marking(x, from_key(key))

    OPERATORS.impl("fake_quantize", implementation, kernel.device.upper())
    torch.library.register_kernel("chop::fake_quantize_marking", kernel.device, marking)
    KERNELS[kernel.device] = kernel
    return kernel


@torch.no_grad()
def fake_quantize(
    x: Tensor,
    number_format: NumberFormat,
    out: Tensor | None = None,
    scales: Tensor | None = None,
) -> Tensor:
    """`number_format.round(x)` by the fastest way there is, without a gradient.

    That is the device's kernel, else the readable reference.

    Args:
        x: any shape, floating.
        number_format: the format.
        out: a tensor of the shape, dtype and device of `x` to write to; may be `x` itself. None
            makes a new one, laid out as `torch.empty_like(x)`.
        scales: float32 (n,), above zero, instead of those that the format finds or has; None for
            them.
    Returns: `out`, or the new tensor.

    Raises:
        ConfigError: `out` is unlike `x`.

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
    """`number_format(x, gradient)`, past PyTorch's dispatcher where nobody would notice.

    Going through it takes as long as rounding a small tensor does.
    """
    if is_followed(x):
        return number_format(x, gradient)
    out, kernel = torch.empty_like(x), KERNELS.get(x.device.type)
    line = None if kernel is None else kernel.line(number_format, x)
    if line is None or line(x.data_ptr(), out.data_ptr(), x.numel()) != 0:
        return _rounded(x, number_format, out)
    return out


def is_followed(x: Tensor) -> bool:
    """Whether a gradient, a compiler, a tracer, a mode or a transform has to see what is called.

    So has PyTorch's dispatcher where numbers are not those in memory, as of a negative view.
    """
    return (
        type(x) is not Tensor
        or (x.requires_grad and torch.is_grad_enabled())
        or torch.compiler.is_compiling()
        or is_transformed()
        or is_dispatch_observed()
        or x.is_neg()
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
    """`number_format.round(x)` and `number_format.saturates(x)`, in one pass where there is one.

    Args:
        x: any shape, floating.
        number_format: the format.
    Returns: the rounded values, and a boolean tensor; both laid out as `torch.empty_like(x)`.
    """
    out, mask = torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)
    kernel = KERNELS.get(x.device.type)
    if kernel is None or not kernel.run(x, number_format, out, mask, None):
        fake_quantize(x, number_format, out)
        mask.copy_(number_format.saturates(x))
    return out, mask
