"""Masks of pruned operators: a weight with zeros, its mask, and the full weight.

Elements of `weight` hidden by the buffer `weight_mask` are zero, so that counts, files and copies
agree with the computation. The buffer `weight_orig` has the values of the masked weights before
pruning; its other elements are undefined.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from chop.private.modules import BUFFERS, own_buffers, own_parameters

MASK, FULL = "weight_mask", "weight_orig"
SALIENCY = "weight_saliency"
"""Sum over training steps of weight * gradient, while `GradualPruning` ranks weights by it."""
MASK_BUFFERS = (MASK, FULL, SALIENCY)
"""Buffers that pruning adds to an operator; only masks change its results."""


def apply_mask(x: Tensor, mask: Tensor) -> Tensor:
    """Returns `x` with zeros at False elements of the mask, including NaN."""
    return torch.where(mask, x, 0)


@torch.no_grad()
def full_weight(module: nn.Module) -> Tensor:
    """Returns a new tensor of the weight with the hidden elements restored.

    A nonzero masked element was written after pruning, by hand or as in `weight.data = other`, and
    takes precedence.
    """
    weight, full = own_parameters(module)["weight"], own_buffers(module).get(FULL)
    assert weight is not None
    if full is None:
        return weight.detach().clone()
    return torch.where(own_buffers(module)[MASK] | (weight != 0), weight, full)  # type: ignore[operator]


@torch.no_grad()
def write_mask(module: nn.Module, mask: Tensor | None, full: Tensor) -> None:
    """Sets the weight to `full`, with zeros at False elements of the mask; None removes the mask.

    The write is in place, which preserves references of optimizers and compiled models.
    """
    weight = own_parameters(module)["weight"]
    assert weight is not None
    weight.copy_(full if mask is None else apply_mask(full, mask))
    for name in MASK_BUFFERS if mask is None else ():
        own_buffers(module).pop(name, None)
    for name, value in ((MASK, mask), (FULL, full)) if mask is not None else ():
        buffer = own_buffers(module).get(name)
        if buffer is None:
            module.register_buffer(name, value)
        else:
            buffer.copy_(value)


def stored_weights(module: nn.Module) -> list[Tensor]:
    """Returns the tensors to rescale with a weight: the parameter, and its hidden elements."""
    stored = (own_parameters(module).get("weight"), own_buffers(module).get(FULL))
    return [x for x in stored if x is not None]


def zero_masked_weights(module: nn.Module) -> None:
    """Zeroes the masked weights of an operator that has a mask and a dense weight."""
    mask = own_buffers(module).get(MASK)
    if mask is not None and has_unapplied_mask(own_buffers(module)):
        write_mask(module, mask, full_weight(module))


def has_unapplied_mask(buffers: Mapping[str, object]) -> bool:
    """Returns whether buffers, by name, have both a mask and a dense weight."""
    return buffers.get(MASK) is not None and buffers.get(FULL) is None


# Every operator that lives, by id: copies and loaded ones must be known too, and a parameter does
# not tell whose it is.
_operators: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()


def track_operator(module: nn.Module) -> None:
    """Registers a module for the optimizer hook that keeps zeros after pruning."""
    _operators[id(module)] = module


def _keep_zeros(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Zeroes masked weights after an optimizer step.

    Masked weights get no gradient, but momentum from before the pruning changes them, and so do
    optimizers that mix the elements of a matrix.
    """
    operators = [reference() for reference in _operators.valuerefs()]
    # One whose constructor failed may live on in a traceback, without buffers.
    pruned = [m for m in operators if m is not None and MASK in vars(m).get(BUFFERS, ())]
    if not pruned:
        return
    updated = {id(x) for group in optimizer.param_groups for x in group["params"]}
    for module in pruned:
        weight, mask = own_parameters(module).get("weight"), own_buffers(module)[MASK]
        if weight is None or mask is None or id(weight) not in updated:
            continue
        if mask.shape == weight.shape:  # another model may have given a shared weight more rows
            weight.detach().masked_fill_(~mask, 0)


register_optimizer_step_post_hook(_keep_zeros)
