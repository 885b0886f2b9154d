"""The mask of a pruned weight: put on, taken off, made permanent, counted."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from chop.nn.packed import PackedOperator
from chop.nn.quantized import QuantizedOperator

MASK = "weight_mask"
NOTE = "pruned_by"


def put_mask(module: QuantizedOperator, hidden: Tensor, note: Mapping[str, str]) -> None:
    """Hides the weights marked True; a mask that is there already takes the new values.

    Args:
        module: a quantised operator with a weight; its formats may all be float.
        hidden: boolean, the weight's shape.
        note: how they were chosen: `method`, `scope`, `granularity`.
    """
    kept = ~hidden.to(module.weight.device)
    if module.is_pruned:
        module.weight_mask.copy_(kept)  # in place: a compiled model stays compiled
    else:
        module.register_buffer(MASK, kept)
    setattr(module, NOTE, dict(note))


def take_mask(module: QuantizedOperator) -> None:
    """Shows all weights again, as they are stored."""
    if module.is_pruned:
        delattr(module, MASK)
    module.__dict__.pop(NOTE, None)


def make_permanent(module: QuantizedOperator) -> None:
    """Writes zeros into the stored weight where it is hidden, and takes the mask off."""
    if module.is_pruned:
        with torch.no_grad():
            module.weight.masked_fill_(~module.weight_mask, 0)
    take_mask(module)


def hidden_of(module: object) -> Tensor | None:
    """Boolean, the weight's shape: True where it is hidden; None without a mask.

    A packed weight keeps no mask: if it had one, its zeros are what is hidden.
    """
    if isinstance(module, PackedOperator) and module.packed_mask:
        return module.weight == 0
    if isinstance(module, QuantizedOperator) and module.is_pruned:
        return ~module.weight_mask
    return None


def sparsity_of(module: object) -> float | None:
    """The share of hidden weights; None without a mask."""
    hidden = hidden_of(module)
    return None if hidden is None else int(hidden.sum()) / max(hidden.numel(), 1)


def note_of(module: object) -> dict[str, str]:
    """How the mask was chosen; empty where nobody noted it."""
    return dict(getattr(module, NOTE, {}))
