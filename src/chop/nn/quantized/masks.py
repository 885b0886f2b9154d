"""Masks of pruned operators: a weight with zeros, its mask, and the full weight.

`weight` is zero wherever the buffer `weight_mask` hides it, so that what is counted, saved and
copied is what is computed. The buffer `weight_orig` has the weights that were masked, as they were
then; its other elements are of no meaning.
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
    """`x` with zeros where the mask is False, NaN masked too."""
    return torch.where(mask, x, 0)


@torch.no_grad()
def full_weight(module: nn.Module) -> Tensor:
    """The weight that pruning chooses from, a new tensor: what the mask hides as it was before.

    A masked element that is not zero was written since, by hand or as in `weight.data = other`,
    and is what counts.
    """
    weight, full = own_parameters(module)["weight"], own_buffers(module).get(FULL)
    assert weight is not None
    if full is None:
        return weight.detach().clone()
    return torch.where(own_buffers(module)[MASK] | (weight != 0), weight, full)  # type: ignore[operator]


@torch.no_grad()
def write_mask(module: nn.Module, kept: Tensor | None, full: Tensor) -> None:
    """Sets the weight to `full`, with zeros where `kept` is False; None takes the mask off.

    In place: optimizers know the parameter, and a compiled model stays compiled.
    """
    weight = own_parameters(module)["weight"]
    assert weight is not None
    weight.copy_(full if kept is None else apply_mask(full, kept))
    for name in MASK_BUFFERS if kept is None else ():
        own_buffers(module).pop(name, None)
    for name, value in ((MASK, kept), (FULL, full)) if kept is not None else ():
        buffer = own_buffers(module).get(name)
        if buffer is None:
            module.register_buffer(name, value)
        else:
            buffer.copy_(value)


def stored_weights(module: nn.Module) -> list[Tensor]:
    """What has to change with a rescaled weight: the parameter, and what pruning hides of it."""
    stored = (own_parameters(module).get("weight"), own_buffers(module).get(FULL))
    return [x for x in stored if x is not None]


def zero_masked_weights(module: nn.Module) -> None:
    """Zeroes the masked weights of an operator that has a mask beside a dense weight."""
    kept = own_buffers(module).get(MASK)
    if kept is not None and has_unapplied_mask(own_buffers(module)):
        write_mask(module, kept, full_weight(module))


def has_unapplied_mask(buffers: Mapping[str, object]) -> bool:
    """Whether buffers, by name, are those of an operator with a mask beside a dense weight."""
    return buffers.get(MASK) is not None and buffers.get(FULL) is None


# Every operator that lives, by id: copies and loaded ones must be known too, and a parameter does
# not tell whose it is.
_operators: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()


def track_operator(module: nn.Module) -> None:
    """Lets optimizers keep the zeros of a module, if it is ever pruned."""
    _operators[id(module)] = module


def _keep_zeros(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Sets what masks hide to zero again after a step.

    Hidden weights get no gradient, but momentum from before the pruning moves them, and so do
    optimizers that mix the elements of a matrix.
    """
    found = [reference() for reference in _operators.valuerefs()]
    # One whose constructor failed may live on in a traceback, without buffers.
    pruned = [m for m in found if m is not None and MASK in vars(m).get(BUFFERS, ())]
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
