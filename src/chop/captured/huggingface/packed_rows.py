"""Packed rows: several texts in one row, separated by positions that restart.

`transformers` detects them (`masking_utils.find_packed_sequence_indices`) if a model gets
positions, no attention mask and no cache. Many models create a cache by default, and then every
text attends to the previous ones, in the graph as in the model.
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
    """Returns whether the texts of a packed row attend to each other in a default call of a model.

    Args:
        model: the model; it runs twice and is restored.
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
        except Exception:  # raised by a model that does not accept the flag or the positions
            return False
    return distance(joined, apart) > 0


def check_packed_rows(positions: Any) -> None:
    """Refuses packed rows for a graph that joins their texts.

    Args:
        positions: (batch, tokens), or any other value.

    Raises:
        GuardError: the positions of a row restart.
    """
    if isinstance(positions, Tensor) and bool((positions.diff(dim=-1) != 1).any()):
        raise GuardError(
            f"got {POSITIONS} that restart within a row and {_FLAG}=False, which separates the "
            "texts of a row; the graph was captured with the model's default, which joins them: "
            f"capture it with cf_args={{'{_FLAG}': False}}, or pass an attention mask"
        )


def _first_output(model: nn.Module, given: Mapping[str, Any], **flag: bool) -> Tensor:
    # A model may write into its inputs.
    result = model(**{name: tree_map(copied, value) for name, value in given.items()}, **flag)
    output = next(iter(result.values())) if isinstance(result, Mapping) else result[0]
    assert isinstance(output, Tensor)
    return output
