"""Weight conversions of transformers: renaming and merging of tensors on loading."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from chop.private.transformers_api import (
    conversion_rules,
    is_stack_of_experts,
    renamed_source,
)

EXPERT = re.compile(r"(?<=\bexperts\.)\d+(?=\.)")
"""Expert number in the name of a tensor in a file."""


@dataclass(frozen=True)
class ExpertMatrix:
    """Position of an expert's matrix within the parameter of all experts.

    Attributes:
        parameter: name in the model; its shape is (experts, rows of all parts, columns).
        expert: number of the expert.
        part: number of the matrix among those of one expert, in order.
        parts: number of matrices per expert.
    """

    parameter: str
    expert: int
    part: int
    parts: int


class Conversions:
    """Rules by which transformers maps tensors of files to a model.

    Args:
        model: model on the meta device.
    """

    def __init__(self, model: Any) -> None:
        self._rules = conversion_rules(model)
        self._known, self._prefix = model.state_dict(), model.base_model_prefix

    def get_name(self, name: str) -> str:
        """Returns the name in the model of a tensor in a file."""
        return self._renamed(name)[0]

    def is_converted(self, name: str) -> bool:
        """Returns whether the model's tensor results from more than renaming."""
        own, pattern = self._renamed(name)
        return pattern is not None and own in self._known

    def expert_matrix(self, name: str) -> ExpertMatrix | None:
        """Returns the position of an expert's tensor; None if it is not simply stacked.

        Args:
            name: name of a weight in files, such as `model.layers.0.mlp.experts.3.up_proj.weight`.
        """
        own, pattern = self._renamed(name)
        number = EXPERT.search(name)
        if number is None or pattern is None or own not in self._known:
            return None
        step = next(x for x in self._rules[1] if pattern in x.source_patterns)
        if not is_stack_of_experts(step):
            return None
        sources = step.source_patterns
        return ExpertMatrix(own, int(number[0]), sources.index(pattern), len(sources))

    def _renamed(self, name: str) -> tuple[str, str | None]:
        """Returns the name in the model, and the pattern of the conversion that applies."""
        prefix, known = self._prefix, self._known
        own, pattern = renamed_source(name, self._rules, prefix, known)
        if own not in known and name in known:
            own, pattern = renamed_source(name, ([], []), prefix, known)
        return own, pattern


def names_in(model: Any, names: Iterable[str]) -> dict[str, str]:
    """Returns name in a file -> name in the model."""
    conversions = Conversions(model)
    return {name: conversions.get_name(name) for name in names}
