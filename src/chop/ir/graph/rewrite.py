"""Pattern rewriting: transforms each match in a graph, or records the reason for leaving it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import fx

from chop.ir.graph.mase_graph import MaseGraph

T = TypeVar("T")


class NotRewritableError(Exception):
    """Raised if a matched pattern cannot be rewritten.

    Args:
        reason: a clause.
        name: name of the match in the result; None uses the name of the node.
    """

    def __init__(self, reason: str, name: str | None = None) -> None:
        super().__init__(reason)
        self.name = name


@dataclass(frozen=True)
class Match(Generic[T]):
    """Match of a pattern.

    Attributes:
        name: name of the match in the result.
        pattern: input of the transform.
    """

    name: str
    pattern: T


def rewrite(
    mg: MaseGraph,
    match: Callable[[fx.Node], Match[T] | None],
    transform: Callable[[T], None],
) -> tuple[list[str], dict[str, str]]:
    """Transforms each match of a pattern; changes the graph.

    Nodes are visited in execution order. Each is matched after the matches before it have been
    transformed, so it may be a product of such a transform.

    Args:
        mg: the graph.
        match: node -> pattern that ends at it, or None. Raises NotRewritableError for a pattern
            that has to stay.
        transform: changes the graph at a match; it may erase nodes.
    Returns: names of the transformed matches, and name -> reason for those that stay.
    """
    names: list[str] = []
    reasons: dict[str, str] = {}
    present = set(mg.nodes)
    for node in list(mg.nodes):
        if node not in present:
            continue
        try:
            result = match(node)
        except NotRewritableError as error:
            reasons[error.name or node.name] = str(error)
            continue
        if result is not None:
            names.append(result.name)
            transform(result.pattern)
            present = set(mg.nodes)
    return names, reasons
