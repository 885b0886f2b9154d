"""Pruning masks of weights: set, remove, make permanent, count."""

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
"""Parameter that torch stores the original of a pruned weight in."""


def attach_mask(
    module: QuantizedOperator,
    masked: Tensor,
    note: Mapping[str, str],
    full: Tensor | None = None,
) -> None:
    """Masks the weights marked True: they become zero, and `weight_orig` stores their values.

    An existing mask is replaced; weights that only it hid are restored.

    Args:
        module: a quantized operator with a weight; its formats may all be float.
        masked: boolean, shape of the weight.
        note: pruning settings: `method`, `scope`, `granularity`.
        full: unmasked weight, for other layers that share it. Default: the module's own.
    """
    assert isinstance(module.weight, Tensor)
    mask = ~masked.to(module.weight.device)
    if not _has_mask(module, mask):
        write_mask(module, mask, full_weight(module) if full is None else full)
    setattr(module, NOTE, dict(note))


def _has_mask(module: QuantizedOperator, mask: Tensor) -> bool:
    """Returns whether a module already has this mask and its zeros."""
    if not module.is_pruned or not torch.equal(module.weight_mask, mask):
        return False
    assert isinstance(module.weight, Tensor)
    return not bool(module.weight.detach().masked_fill(mask, 0).any())


def detach_mask(module: QuantizedOperator) -> None:
    """Removes the mask and restores the masked values."""
    if module.is_pruned:
        write_mask(module, None, full_weight(module))
    module.__dict__.pop(NOTE, None)


def make_permanent(module: QuantizedOperator) -> None:
    """Removes the mask, keeps the zeros and drops the masked values."""
    if module.is_pruned:
        write_mask(module, None, module.effective("weight"))
    module.__dict__.pop(NOTE, None)


def get_masked(module: object) -> Tensor | None:
    """Returns the masked weights as boolean, shape of the weight; None without a mask.

    It supports masks of `torch.nn.utils.prune`. For a packed weight that was pruned, the zeros
    count as masked.
    """
    if isinstance(module, PackedOperator) and module.packed_mask:
        return module.weight == 0
    if isinstance(module, QuantizedOperator) and module.is_pruned:
        return ~module.weight_mask
    if isinstance(module, nn.Module) and ORIGINAL in own_parameters(module):
        return masked_parameter(module, ORIGINAL)[1]
    return None


def get_sparsity(module: object) -> float | None:
    """Returns the share of masked weights; None without a mask."""
    masked = get_masked(module)
    return None if masked is None else int(masked.sum()) / max(masked.numel(), 1)


def describe_pruning(module: object) -> dict[str, str]:
    """Returns the pruning settings of a mask; empty if they are unknown."""
    return dict(getattr(module, NOTE, {}))
