"""Input guards on dtype and memory layout: a call warns where a branch may go another way.

A branch on them is no node of the graph, so the branch of the example is kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from chop.capture.specs import TensorSpec

DTYPE, LAYOUT = "dtype", "memory layout"
LAYOUT_METHODS = frozenset({"is_contiguous", "stride"})
"""Methods of tensors that tell their layout."""


class InputGuardWarning(UserWarning):
    """An input differs from the example in a dtype or memory layout that the model branches on."""


def contiguous(inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the inputs that are contiguous tensors."""
    return tuple(name for name, x in inputs.items() if _is_strided(x) and x.is_contiguous())


def check_input_guards(
    asked: Mapping[str, str],
    examples: Mapping[str, Any],
    contiguous: tuple[str, ...],
    given: Mapping[str, Any],
) -> None:
    """Warns where an input differs in a dtype or memory layout that the model branches on.

    Args:
        asked: the line (`file:line`) of the model that asked, by what it asked for.
        examples: a `TensorSpec` per input of the graph.
        contiguous: the inputs that were contiguous at capture.
        given: the inputs of the call by name.
    """
    for name, x in given.items():
        spec = examples.get(name)
        if not isinstance(spec, TensorSpec) or not _is_strided(x):
            continue
        if DTYPE in asked and x.dtype != spec.dtype:
            _warn(name, DTYPE, f"{spec.dtype}", f"{x.dtype}", asked[DTYPE])
        # Of a tensor without a second row every layout is contiguous.
        if LAYOUT in asked and x.is_contiguous() != (name in contiguous) and x.numel() > 1:
            states = ("not contiguous", "contiguous")
            came = x.is_contiguous()
            _warn(name, LAYOUT, states[not came], states[came], asked[LAYOUT])


def _is_strided(x: Any) -> bool:
    return isinstance(x, Tensor) and str(x.layout) == "torch.strided" and not x.is_nested


def _warn(name: str, what: str, expected: str, came: str, where: str) -> None:
    warnings.warn(
        f"captured for {name} of {what} {expected}, got {came}: the model asks for the {what} of "
        f"a tensor at {where}, and the graph keeps what it did on the example; capture the model "
        "again with such an example",
        InputGuardWarning,
        stacklevel=4,
    )
