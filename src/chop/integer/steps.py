"""Steps of an integer graph: operators, the codes between them, and what reads these."""

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
        node: gives them.
        edge: what they mean; None of whole numbers that are no codes: token ids, masks.
    """

    node: fx.Node
    edge: Edge | None

    @property
    def proven(self) -> Edge:
        """What they mean; they are codes."""
        assert self.edge is not None
        return self.edge


@dataclass(eq=False)
class Step:
    """An operator of the new graph beside what it stands for.

    Attributes:
        name: of the node in the old graph, and which step of it.
        kind: name of the operator.
        inputs: what it reads.
        result: what it returns.
        reference: its result by the quantized graph, from real numbers.
        dtype: of these.
        readers: the result in the codes of each grid that it is read in.
        is_decoded: it is read as real numbers too: an output of the model.
    """

    name: str
    kind: str
    inputs: tuple[Codes, ...]
    result: Codes
    reference: Callable[..., Tensor]
    dtype: torch.dtype
    readers: list[tuple[fx.Node, AnyGrid]] = field(default_factory=list)
    is_decoded: bool = False
