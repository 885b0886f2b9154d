"""Tied weights of packed layers in models of transformers, which tie by name."""

from __future__ import annotations

from typing import Any

from torch import nn

from chop.nn.packed import PackedOperator
from chop.nn.packed.base import BUFFER_NAMES


def tie_codes(model: nn.Module) -> None:
    """Makes transformers tie the codes of packed layers where it would tie their weights.

    Args:
        model: a `PreTrainedModel`; what it and its parts say of tied weights is changed.
    """
    import transformers

    parts = [m for m in model.modules() if isinstance(m, transformers.PreTrainedModel)]
    for part in parts:
        known: Any = part._tied_weights_keys
        if isinstance(known, dict):
            part._tied_weights_keys = dict(
                pair for item in known.items() for pair in _tied(part, *item)
            )
    for part in reversed(parts):
        part.all_tied_weights_keys = part.get_expanded_tied_weights_keys(all_submodels=True)


def _tied(part: nn.Module, target: str, source: str) -> list[tuple[str, str]]:
    """The pairs of names in the place of one: a pattern that names no packed layer stays."""
    ours, _, name = target.rpartition(".")
    theirs = source.rpartition(".")[0]
    modules = dict(part.named_modules(remove_duplicate=False))
    packed = modules.get(ours)
    if not isinstance(packed, PackedOperator) or name not in packed.packed_shapes:
        return [(target, source)]
    present = [buffer for buffer in BUFFER_NAMES[name] if packed._buffers.get(buffer) is not None]
    return [(f"{ours}.{buffer}", f"{theirs}.{buffer}") for buffer in present]
