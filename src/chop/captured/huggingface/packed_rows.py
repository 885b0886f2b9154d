"""Packed rows: several texts in one row, separated by positions that begin again.

transformers looks for them (`masking_utils.find_packed_sequence_indices`) where a model is given
positions, no attention mask and no cache. Many models make a cache unless a setting forbids it,
and then every text attends to those before it, in the graph as in the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from chop.base.nested import tree_map
from chop.captured.difference import distance
from chop.captured.huggingface.cache import copied
from chop.captured.huggingface.cache_names import POSITIONS
from chop.captured.state.preserve_state import preserve_state
from chop.errors import GuardError

_FLAG = "use_cache"


def joins_packed_rows(
    model: nn.Module, example: Mapping[str, Any], fixed: Mapping[str, Any]
) -> bool:
    """Whether a model, called as by default, lets the texts of a packed row attend to each other.

    Args:
        model: the model; it runs twice and is left as it was.
        example: its example inputs by name.
        fixed: further arguments of its `forward`.
    """
    positions = example.get(POSITIONS)
    if "attention_mask" in example or _FLAG in fixed or not hasattr(model, "config"):
        return False
    if not isinstance(positions, Tensor) or positions.dim() != 2 or positions.shape[1] < 2:
        return False
    row = torch.arange(positions.shape[1], device=positions.device) % (positions.shape[1] // 2 + 1)
    given = {**example, POSITIONS: row.to(positions.dtype).expand_as(positions), **fixed}
    with preserve_state(model, thorough=True), torch.no_grad():
        model.eval()
        try:
            joined, apart = (_first_output(model, given, **flag) for flag in ({}, {_FLAG: False}))
        except Exception:  # the model's own: it takes no such flag, or no such positions
            return False
    return distance(joined, apart) > 0


def check_packed_rows(positions: Any) -> None:
    """Refuses packed rows that are to be kept apart, for a graph that joins them.

    Args:
        positions: (batch, tokens), or what came instead.

    Raises:
        GuardError: a row begins again.
    """
    if isinstance(positions, Tensor) and bool((positions.diff(dim=-1) != 1).any()):
        raise GuardError(
            f"got {POSITIONS} that begin again within a row, and {_FLAG}=False, with which the "
            "model keeps the texts of a row apart; the graph was captured with the model's "
            f"default, which lets them attend to each other: capture it with cf_args={{'{_FLAG}': "
            "False}, or pass an attention mask"
        )


def _first_output(model: nn.Module, given: Mapping[str, Any], **flag: bool) -> Tensor:
    # A model may write into its inputs.
    result = model(**{name: tree_map(copied, value) for name, value in given.items()}, **flag)
    found = next(iter(result.values())) if isinstance(result, Mapping) else result[0]
    assert isinstance(found, Tensor)
    return found
