"""Steps of an integer graph: operators, the codes between them, and their readers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx

from chop.integer.grids import AnyGrid
from chop.nn.integer import Edge


@dataclass(frozen=True)
class Codes:
    """Codes in the new graph.

    Attributes:
        node: node that computes them.
        edge: meaning of the codes; None for plain integers such as token ids and masks.
    """

    node: fx.Node
    edge: Edge | None

    @property
    def proven(self) -> Edge:
        """Meaning of the codes, which must not be plain integers."""
        assert self.edge is not None
        return self.edge


@dataclass(eq=False)
class Step:
    """An operator of the new graph with its reference.

    Attributes:
        name: name of the old node, with the name of the step.
        kind: operator name.
        inputs: input codes.
        result: result codes.
        reference: computes the result in the quantized graph from real numbers.
        dtype: dtype of these numbers.
        readers: nodes with the requantized result, by reading grid.
        is_decoded: the result is an output of the model, as real numbers.
    """

    name: str
    kind: str
    inputs: tuple[Codes, ...]
    result: Codes
    reference: Callable[..., Tensor]
    dtype: torch.dtype
    readers: list[tuple[fx.Node, AnyGrid]] = field(default_factory=list)
    is_decoded: bool = False
