"""Steps of an integer graph: operators, the codes between them, and their readers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx

from chop.integer.grids import AnyGrid
from chop.nn.integer import Edge
from chop.nn.integer.cache import cached_rows


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


@dataclass(frozen=True)
class Attended:
    """Keys or values of an attention.

    Attributes:
        inputs: their codes (batch, heads, tokens, features); in a step of a decoder, those of its
            token, and the positions of tokens.
        groups: heads of queries for each of their heads.
        length: number of positions of a cache; 0 without one.
    """

    inputs: tuple[Codes, ...]
    groups: int
    length: int = 0

    def rows(self, *values: Tensor) -> Tensor:
        """Returns the rows of each head of queries from values of the inputs."""
        rows = values[0]
        if self.length:
            rows = cached_rows(rows, values[1], self.length)
        return rows.repeat_interleave(self.groups, -3)


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
