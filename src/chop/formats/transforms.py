"""Fake-quantization under `torch.func` and forward-mode differentiation.

A registered operator has a rule for `backward()` alone: forward-mode tangents pass it by as if it
were constant, and `torch.func` refuses it. Here the same operators stand inside an
`autograd.Function` that has a rule for both directions and for `vmap`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chop.errors import DerivativeError
from chop.private.torch_api import is_transformed


def refuse_transforms(what: str, instead: str) -> None:
    """Raises DerivativeError where a derivative would be lost.

    Args:
        what: has a derivative for `backward()` alone.
        instead: what to use.
    """
    if is_transformed():
        raise DerivativeError(
            f"{what} has derivatives for backward() only, got a call inside torch.func or "
            f"forward-mode differentiation; {instead}"
        )


def fake_quantize(x: Tensor, key: str, clips: bool) -> Tensor:
    """`round(x)` inside a transform; see `FakeQuantize` for the arguments.

    Raises:
        DerivativeError: while torch.compile traces the transform, whose graph would take every
            tangent for zero; without `fullgraph` it then leaves the transform to PyTorch.
    """
    if torch.compiler.is_compiling():
        raise DerivativeError(
            "torch.compile cannot trace a fake-quantizer inside torch.func or forward-mode "
            "differentiation; compile the function inside the transform, or without fullgraph=True"
        )
    rounded: Tensor = FakeQuantize.apply(x, key, clips)[0]  # type: ignore[no-untyped-call]
    return rounded


class FakeQuantize(torch.autograd.Function):
    """`round(x)` with straight-through derivatives of every kind.

    `apply(x, key, clips)` takes `x` of any shape and floating dtype, the key of a format, and
    whether derivatives are zero where a value saturates. It returns the rounded tensor and a
    boolean one, True where derivatives are zero. Derivatives go through each other: the second one
    is zero. Under `vmap` each sample is rounded by itself, as its shared scales are its own.

    Source: Bengio et al. 2013, arXiv:1308.3432.
    """

    @staticmethod
    def forward(x: Tensor, key: str, clips: bool) -> tuple[Tensor, Tensor]:
        """Rounds by the operators that are used without transforms, so with the same bits."""
        if clips:
            rounded, mask = torch.ops.chop.fake_quantize_marking(x, key)
            return rounded, mask
        return torch.ops.chop.fake_quantize(x, key), torch.zeros_like(x, dtype=torch.bool)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keeps the mask for both directions."""
        mask = output[1]
        ctx.mark_non_differentiable(mask)
        ctx.save_for_backward(mask)
        ctx.save_for_forward(mask)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, of_mask: Any) -> tuple[Tensor, None, None]:
        """The gradient where the value did not saturate."""
        (mask,) = ctx.saved_tensors
        return torch.where(mask, 0.0, grad), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *others: Any) -> tuple[Tensor, None]:
        """The tangent where the value did not saturate."""
        (mask,) = ctx.saved_tensors
        return torch.where(mask, 0.0, tangent), None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, key: str, clips: bool
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        """One sample after the other."""
        (axis, _, _) = in_dims
        assert axis is not None
        apply = FakeQuantize.apply
        samples = [apply(sample, key, clips) for sample in x.unbind(axis)]  # type: ignore[no-untyped-call]
        rounded, masks = zip(*samples, strict=True)
        return (torch.stack(rounded), torch.stack(masks)), (0, 0)
