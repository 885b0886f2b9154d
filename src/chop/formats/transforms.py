"""Fake-quantization under `torch.func` and forward-mode differentiation.

A registered operator has a rule for `backward()` only. Forward mode would treat it as a constant,
and `torch.func` rejects it. This module wraps the operators in an `autograd.Function` with rules
for both directions and for `vmap`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chop.errors import DerivativeError
from chop.private.torch_api import is_transformed


def refuse_transforms(what: str, instead: str) -> None:
    """Raises DerivativeError if a derivative would be lost.

    Args:
        what: operation that has a derivative for `backward()` only.
        instead: suggested alternative.
    """
    if is_transformed():
        raise DerivativeError(
            f"{what} supports only backward(), and was called inside torch.func or forward-mode "
            f"differentiation; {instead}"
        )


def fake_quantize(x: Tensor, key: str, clips: bool) -> Tensor:
    """Returns `round(x)` inside a transform; see `FakeQuantize` for the arguments.

    Raises:
        DerivativeError: while torch.compile traces the transform, because its graph would treat
            every tangent as zero. Without `fullgraph`, PyTorch then runs the transform eagerly.
    """
    if torch.compiler.is_compiling():
        raise DerivativeError(
            "torch.compile cannot trace a fake-quantizer inside torch.func or forward-mode "
            "differentiation; compile the function inside the transform, or without fullgraph=True"
        )
    rounded: Tensor = FakeQuantize.apply(x, key, clips)[0]  # type: ignore[no-untyped-call]
    return rounded


class FakeQuantize(torch.autograd.Function):
    """`round(x)` with straight-through derivatives in all modes.

    `apply(x, key, clips)` takes `x` of any shape and floating dtype, the key of a format, and
    whether derivatives are zero at saturated values. It returns the rounded tensor and a boolean
    mask of zero derivatives. The second derivative is zero. Under `vmap` each sample is rounded
    separately, with its own shared scales.

    Source: Bengio et al. 2013, arXiv:1308.3432.
    """

    @staticmethod
    def forward(x: Tensor, key: str, clips: bool) -> tuple[Tensor, Tensor]:
        """Rounds with the operators used outside transforms, for bit-identical results."""
        if clips:
            rounded, mask = torch.ops.chop.fake_quantize_marking(x, key)
            return rounded, mask
        return torch.ops.chop.fake_quantize(x, key), torch.zeros_like(x, dtype=torch.bool)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Saves the mask for both directions."""
        mask = output[1]
        ctx.mark_non_differentiable(mask)
        ctx.save_for_backward(mask)
        ctx.save_for_forward(mask)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, mask_grad: Any) -> tuple[Tensor, None, None]:
        """Returns the gradient, zero at saturated values."""
        (mask,) = ctx.saved_tensors
        return torch.where(mask, 0.0, grad), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *others: Any) -> tuple[Tensor, None]:
        """Returns the tangent, zero at saturated values."""
        (mask,) = ctx.saved_tensors
        return torch.where(mask, 0.0, tangent), None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, key: str, clips: bool
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        """Rounds the samples one by one."""
        (axis, _, _) = in_dims
        assert axis is not None
        apply = FakeQuantize.apply
        samples = [apply(sample, key, clips) for sample in x.unbind(axis)]  # type: ignore[no-untyped-call]
        rounded, masks = zip(*samples, strict=True)
        return (torch.stack(rounded), torch.stack(masks)), (0, 0)
