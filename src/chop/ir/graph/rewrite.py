"""Pattern rewriting: each match in a graph is transformed, or has a reason not to be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import fx

from chop.ir.graph.mase_graph import MaseGraph

T = TypeVar("T")


class NotRewritableError(Exception):
    """Why a pattern that is there stays as it is.

    Args:
        reason: a clause.
        name: of the place in the result; None is the name of the node.
    """

    def __init__(self, reason: str, name: str | None = None) -> None:
        super().__init__(reason)
        self.name = name


@dataclass(frozen=True)
class Match(Generic[T]):
    """A pattern that was found.

    Attributes:
        name: of the place in the result.
        found: what the transform needs.
    """

    name: str
    found: T


def rewrite(
    mg: MaseGraph,
    match: Callable[[fx.Node], Match[T] | None],
    transform: Callable[[T], None],
) -> tuple[list[str], dict[str, str]]:
    """Transforms each match of a pattern; the graph is changed.

    Nodes are visited in the order in which they run. Each is matched when those before it have
    been transformed, and may be the result of a transform's change.

    Args:
        mg: the graph.
        match: a node -> the pattern that it ends, or None where there is none. Raises
            NotRewritableError where it is there and has to stay.
        transform: changes the graph at a match; it may erase nodes.
    Returns: the names of the matches, and by name the reason for each that stays.
    """
    names: list[str] = []
    reasons: dict[str, str] = {}
    present = set(mg.nodes)
    for node in list(mg.nodes):
        if node not in present:
            continue
        try:
            found = match(node)
        except NotRewritableError as error:
            reasons[error.name or node.name] = str(error)
            continue
        if found is not None:
            names.append(found.name)
            transform(found.found)
            present = set(mg.nodes)
    return names, reasons
