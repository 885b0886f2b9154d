"""Weight conversions of transformers: how tensors of files are renamed or joined in a model."""

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
"""Number of an expert in the name of a tensor of files."""


@dataclass(frozen=True)
class ExpertMatrix:
    """Place of the matrix of an expert within a parameter that has those of all experts.

    Attributes:
        parameter: name in the model; its shape is (experts, rows of all parts, columns).
        expert: number of the expert.
        part: number of the matrix among those of an expert that the parameter has, in their order.
        parts: number of matrices side by side.
    """

    parameter: str
    expert: int
    part: int
    parts: int


class Conversions:
    """Rules by which transformers reads the tensors of files into a model.

    Args:
        model: on the meta device.
    """

    def __init__(self, model: Any) -> None:
        self._rules = conversion_rules(model)
        self._known, self._prefix = model.state_dict(), model.base_model_prefix

    def get_name(self, name: str) -> str:
        """The name of the tensor that is made of one of files."""
        return self._renamed(name)[0]

    def is_converted(self, name: str) -> bool:
        """Returns whether the model has a tensor that is made of it otherwise than by renaming."""
        own, pattern = self._renamed(name)
        return pattern is not None and own in self._known

    def expert_matrix(self, name: str) -> ExpertMatrix | None:
        """The place of a tensor of one expert; None: it is none that is stacked as it is.

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
        """The name in the model, and the pattern of a conversion that the tensor goes through."""
        prefix, known = self._prefix, self._known
        own, pattern = renamed_source(name, self._rules, prefix, known)
        if own not in known and name in known:
            own, pattern = renamed_source(name, ([], []), prefix, known)
        return own, pattern


def names_in(model: Any, names: Iterable[str]) -> dict[str, str]:
    """By name of a tensor in files, the name of the tensor that transformers makes of it."""
    conversions = Conversions(model)
    return {name: conversions.get_name(name) for name in names}
