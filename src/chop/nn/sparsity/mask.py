"""Pruning masks of weights: set, removed, made permanent, counted."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from chop.nn.packed import PackedOperator
from chop.nn.quantized import QuantizedOperator
from chop.nn.quantized.computed import masked_parameter
from chop.nn.quantized.masks import full_weight, write_mask
from chop.private.modules import own_parameters

NOTE = "pruned_by"
ORIGINAL = "weight_orig"
"""The parameter that torch makes of a weight that it prunes."""


def attach_mask(
    module: QuantizedOperator,
    masked: Tensor,
    note: Mapping[str, str],
    full: Tensor | None = None,
) -> None:
    """Masks the weights marked True: they become zero, and `weight_orig` keeps them.

    A mask that is there already takes the new values; what it alone hid comes back.

    Args:
        module: a quantized operator with a weight; its formats may all be float.
        masked: boolean, the weight's shape.
        note: how they were chosen: `method`, `scope`, `granularity`.
        full: the weight without a mask, for the others that share it; default, the module's own.
    """
    assert isinstance(module.weight, Tensor)
    kept = ~masked.to(module.weight.device)
    if not _has_mask(module, kept):
        write_mask(module, kept, full_weight(module) if full is None else full)
    setattr(module, NOTE, dict(note))


def _has_mask(module: QuantizedOperator, mask: Tensor) -> bool:
    """True where a module has this mask, and zeros under it: nothing is to be written."""
    if not module.is_pruned or not torch.equal(module.weight_mask, mask):
        return False
    assert isinstance(module.weight, Tensor)
    return not bool(module.weight.detach().masked_fill(mask, 0).any())


def detach_mask(module: QuantizedOperator) -> None:
    """Shows all weights again: what was masked has the values from before."""
    if module.is_pruned:
        write_mask(module, None, full_weight(module))
    module.__dict__.pop(NOTE, None)


def make_permanent(module: QuantizedOperator) -> None:
    """Takes the mask off and leaves the zeros; what was masked is forgotten."""
    if module.is_pruned:
        write_mask(module, None, module.effective("weight"))
    module.__dict__.pop(NOTE, None)


def get_masked(module: object) -> Tensor | None:
    """Boolean, the weight's shape: True where it is masked; None without a mask.

    A mask of `torch.nn.utils.prune` counts. A packed weight keeps no mask: if it had one, its zeros
    are what is masked.
    """
    if isinstance(module, PackedOperator) and module.packed_mask:
        return module.weight == 0
    if isinstance(module, QuantizedOperator) and module.is_pruned:
        return ~module.weight_mask
    if isinstance(module, nn.Module) and ORIGINAL in own_parameters(module):
        return masked_parameter(module, ORIGINAL)[1]
    return None


def get_sparsity(module: object) -> float | None:
    """The share of masked weights; None without a mask."""
    masked = get_masked(module)
    return None if masked is None else int(masked.sum()) / max(masked.numel(), 1)


def describe_pruning(module: object) -> dict[str, str]:
    """How the mask was chosen; empty where nobody noted it."""
    return dict(getattr(module, NOTE, {}))
