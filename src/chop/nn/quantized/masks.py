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

MASK, FULL = "weight_mask", "weight_orig"


def apply_mask(x: Tensor, mask: Tensor) -> Tensor:
    """`x` with zeros where the mask is False, NaN masked too."""
    return torch.where(mask, x, 0)


@torch.no_grad()
def full_weight(module: nn.Module) -> Tensor:
    """The weight that pruning chooses from, a new tensor: what the mask hides as it was before.

    A masked element that is not zero was written since, by hand or as in `weight.data = other`,
    and is what counts.
    """
    weight, full = module._parameters["weight"], module._buffers.get(FULL)
    assert weight is not None
    if full is None:
        return weight.detach().clone()
    return torch.where(module._buffers[MASK] | (weight != 0), weight, full)  # type: ignore[operator]


@torch.no_grad()
def write_mask(module: nn.Module, kept: Tensor | None, full: Tensor) -> None:
    """Sets the weight to `full`, with zeros where `kept` is False; None takes the mask off.

    In place: optimizers know the parameter, and a compiled model stays compiled.
    """
    weight = module._parameters["weight"]
    assert weight is not None
    weight.copy_(full if kept is None else apply_mask(full, kept))
    for name, value in ((MASK, kept), (FULL, full)):
        buffer = module._buffers.get(name)
        if kept is None:
            module._buffers.pop(name, None)
        elif buffer is None:
            module.register_buffer(name, value)
        else:
            buffer.copy_(value)  # type: ignore[arg-type]


def stored_weights(module: nn.Module) -> list[Tensor]:
    """What has to change with a rescaled weight: the parameter, and what pruning hides of it."""
    stored = (module._parameters.get("weight"), module._buffers.get(FULL))
    return [x for x in stored if x is not None]


def zero_masked_weights(module: nn.Module) -> None:
    """Zeroes the masked weights of an operator that has a mask beside a dense weight."""
    kept = module._buffers.get(MASK)
    if kept is not None and has_unapplied_mask(module._buffers):
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
    pruned = [m for m in found if m is not None and MASK in vars(m).get("_buffers", ())]
    if not pruned:
        return
    updated = {id(x) for group in optimizer.param_groups for x in group["params"]}
    for module in pruned:
        weight, mask = module._parameters.get("weight"), module._buffers[MASK]
        if weight is not None and mask is not None and id(weight) in updated:
            weight.detach().masked_fill_(~mask, 0)


register_optimizer_step_post_hook(_keep_zeros)
