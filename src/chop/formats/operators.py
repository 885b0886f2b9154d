"""Registered operators that quantize during training and evaluation.

They are a single node for FX, torch.compile and export, for any format. Their default
implementation is the readable reference; faster ones register themselves per device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from chop.formats.parsing import from_key


def _rounded(x: Tensor, key: str) -> Tensor:
    rounded = from_key(key).round(x)
    # A custom operator must not return its own input, which `round` may do, and must keep to the
    # strides that its fake implementation announces.
    announced = torch.empty_like(x, device="meta").stride()
    if rounded is x or rounded.stride() != announced:
        return torch.empty_like(x).copy_(rounded)
    return rounded


# `Library` and not `custom_op`, whose calls cost as much as rounding a small tensor.
OPERATORS = torch.library.Library("chop", "FRAGMENT")


def define_operator(
    schema: str,
    reference: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., None] | None = None,
) -> None:
    """Defines an operator of the namespace `chop`.

    Args:
        schema: name with arguments and results.
        reference: implementation for devices without a kernel; returns new tensors.
        fake: returns empty tensors like those of the reference.
        backward: returns the gradients, as in `torch.library.register_autograd`; None without one.
        setup_context: saves tensors for `backward`.
    """
    name = schema.partition("(")[0]
    OPERATORS.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    OPERATORS.impl(name, reference, "CompositeExplicitAutograd")
    torch.library.register_fake(f"chop::{name}", fake, lib=OPERATORS)
    if backward is not None:
        torch.library.register_autograd(
            f"chop::{name}", backward, setup_context=setup_context, lib=OPERATORS
        )


def _straight_through(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return grad, None


define_operator(
    "fake_quantize(Tensor x, str key) -> Tensor",
    _rounded,
    lambda x, key: torch.empty_like(x),
    _straight_through,
)


# The mask is found while the values are there: finding it in the backward pass would cost another
# pass over them, and keep them alive.
def _fake_quantize_marking(x: Tensor, key: str) -> tuple[Tensor, Tensor]:
    mask = torch.empty_like(x, dtype=torch.bool).copy_(from_key(key).saturates(x))
    return _rounded(x, key), mask


def _marked_like(x: Tensor, key: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)


def _save_mask(ctx: Any, inputs: tuple[Tensor, str], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1])


def _clipped(ctx: Any, grad: Tensor | None, mask_grad: None = None) -> tuple[Tensor | None, None]:
    (mask,) = ctx.saved_tensors
    # Most weights are all within the range: reading the mask is faster than copying the gradient.
    # Traced masks have no values, and reading those of a GPU would wait for it. `any` takes ten
    # times as long as the largest byte.
    is_read = type(mask) is Tensor and mask.is_cpu and mask.numel() > 0
    keeps_all = is_read and not mask.view(torch.uint8).max()
    if grad is None or keeps_all:
        return grad, None
    return torch.ops.chop.clip_gradient(grad, mask), None


define_operator(
    "fake_quantize_marking(Tensor x, str key) -> (Tensor, Tensor)",
    _fake_quantize_marking,
    _marked_like,
    _clipped,
    _save_mask,
)


def _clip_gradient(grad: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, grad.new_zeros(()), grad, out=torch.empty_like(grad))


def _keep_mask(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


define_operator(
    "clip_gradient(Tensor grad, Tensor mask) -> Tensor",
    _clip_gradient,
    lambda grad, mask: torch.empty_like(grad),
    _clipped,
    _keep_mask,
)
