"""Masked attention scores (such as -inf), which quantizers skip.

A softmax gives masked scores a weight of zero. In a quantizer they would set the shared scale of
other scores, make their block NaN, or saturate and become visible. Operators on scores therefore
pass masked scores unchanged, and scale and round only the visible ones.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from chop.nn.quantized.numbers import is_in_fake_mode
from chop.private.torch_api import is_transformed

LOWEST_SCORE = -5e3
"""Threshold of masked scores, for masks of -1e4, -1e9 or the lowest number plus any score."""


def masked_scores(x: Tensor) -> Tensor | None:
    """Returns a boolean mask of masked scores, shape of `x`; None if there are certainly none.

    Args:
        x: input of a softmax, any shape and floating dtype.
    """
    if _can_look_at(x) and x.detach().amin().item() > LOWEST_SCORE:
        return None
    return x.detach() <= LOWEST_SCORE


def masked_operands(operands: Sequence[Tensor]) -> Tensor | None:
    """Returns a boolean mask in the broadcast shape, True where any operand masks a score.

    Their sum, difference or product is or becomes a masked score, of either sign, since a mask may
    be subtracted. None if nothing is masked.

    Args:
        operands: floating operands of arithmetic on scores.
    """
    masks = [large_scores(x) for x in operands]
    masked = [x for x in masks if x is not None]
    if not masked:
        return None
    shape = torch.broadcast_shapes(*(x.shape for x in operands))
    everywhere = masked[0]
    for other in masked[1:]:
        everywhere = everywhere | other
    return everywhere.expand(shape)


def masked_choice(chosen: Tensor, x: Any, y: Any) -> Tensor | None:
    """Returns the masked elements of `torch.where(chosen, x, y)`: fill values and masked scores.

    Args:
        chosen: True selects `x`.
        x: tensor, or fill value: a number, or a tensor without dimensions.
        y: as `x`. Two fill values are plain numbers and mask nothing.
    Returns: boolean; None if nothing is masked.
    """
    tensors = [z for z in (x, y) if not is_fill(z)]
    if not tensors:
        return None
    masked = None
    for z, taken in ((x, chosen), (y, ~chosen)):  # onnxruntime has no Where of booleans
        hidden = None if is_fill(z) else large_scores(z)
        if is_fill(z) or hidden is not None:
            part = taken if hidden is None else taken & hidden
            masked = part if masked is None else masked | part
    if masked is None:
        return None
    return masked.expand(torch.broadcast_shapes(chosen.shape, *(z.shape for z in tensors)))


def is_fill(x: Any) -> bool:
    """Returns whether an argument of a selection is one number for all elements."""
    return not isinstance(x, Tensor) or not x.dim()


def large_scores(x: Tensor) -> Tensor | None:
    """Returns a boolean mask of the large numbers of either sign; None if there are none."""
    if _can_look_at(x):
        low, high = x.detach().aminmax()
        if low.item() > LOWEST_SCORE and high.item() < -LOWEST_SCORE:
            return None
    return x.detach().abs() >= -LOWEST_SCORE


Step = tuple[str, Sequence[Any]]
"""A tensor method that rearranges elements, and its arguments."""


def hidden_ahead(masks: Sequence[tuple[str, Any, Sequence[Step]]], x: Tensor) -> Tensor | None:
    """Returns the elements of a result that later masks hide, as boolean; None if they hide none.

    Args:
        masks: see `chop.captured.padding.masks.MASKS_AHEAD`.
        x: the result, or any tensor of its shape.
    """
    masked = None
    for kind, mask, steps in masks:
        hidden = _hidden_by(kind, mask, x)
        if hidden is None:
            continue
        shapes = [x.shape]
        laid_out = torch.empty_like(x, dtype=torch.bool) if steps else x
        for name, args in steps:
            laid_out = getattr(laid_out, name)(*args)
            shapes.append(laid_out.shape)
        whole = hidden.expand(torch.broadcast_shapes(hidden.shape, shapes[-1]))
        part = operand_mask(whole, shapes[-1])
        assert part is not None
        for (name, args), shape in zip(reversed(steps), reversed(shapes[:-1]), strict=True):
            part = part.transpose(*args) if name == "transpose" else part.reshape(shape)
        masked = part if masked is None else masked | part
    return masked


def _hidden_by(kind: str, mask: Any, x: Tensor) -> Tensor | None:
    """Returns the elements hidden by an entry of `MASKS_AHEAD`, in the layout of `x`."""
    if kind == "every":
        parts = [hidden_ahead(group, x) for group in mask]
        shared = [part for part in parts if part is not None]
        return functools.reduce(torch.logical_and, shared) if len(shared) == len(parts) else None
    return large_scores(mask) if kind == "added" else mask if kind == "hidden" else ~mask


def operand_mask(masked: Tensor | None, shape: torch.Size) -> Tensor | None:
    """Returns the mask of an operand: elements that are hidden in all their repetitions.

    Args:
        masked: boolean; None if nothing is masked.
        shape: shape of the operand, which broadcasts to the shape of `masked`.
    """
    if masked is None or masked.shape == shape:
        return masked
    extra = masked.ndim - len(shape)
    masked = masked.flatten(0, extra - 1).all(0) if extra else masked
    for dim, size in enumerate(shape):
        if size == 1 and masked.size(dim) > 1:
            masked = masked.all(dim, keepdim=True)
    return masked


def _can_look_at(x: Tensor) -> bool:
    """Returns whether reading a value is free: on a CPU, outside compilers."""
    if type(x.detach()) is not Tensor or x.device.type != "cpu" or not x.numel():
        return False
    if torch.compiler.is_compiling() or is_transformed():
        return False
    return not is_in_fake_mode(x)
