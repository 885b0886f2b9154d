"""Indices and masks that enter a circuit: whole numbers of the host, which no operator encodes."""

from __future__ import annotations

from torch import fx, nn

from chop.errors import ConfigError
from chop.hardware.design.values import KEPT
from chop.ir.graph import MaseGraph
from chop.nn.integer import Edge, IntegerEmbedding
from chop.nn.integer.mask import KeptKeys


def index_edge(mg: MaseGraph, node: fx.Node) -> Edge:
    """What an input of whole numbers may be: rows of all tables that read it; of a mask 0 and 1.

    Raises:
        ConfigError: an operator without a circuit reads it.
    """
    edges = [_edge(module) for module in _readers(mg, node)]
    highest = min((edge.high for edge in edges if edge is not None), default=None)
    if highest is None or None in edges:
        raise ConfigError("expected whole numbers that embeddings or attention masks read")
    return Edge.of(1.0, 0, highest)


def _readers(mg: MaseGraph, node: fx.Node) -> list[nn.Module | None]:
    """What reads an input, beyond operators that only move it."""
    found: list[nn.Module | None] = []
    for user in node.users:
        moves = mg.operator(user).only_moves and mg.operator(user).layout != "read"
        found += _readers(mg, user) if moves else [mg.get_module(user)]
    return found


def _edge(module: nn.Module | None) -> Edge | None:
    if isinstance(module, IntegerEmbedding):
        return Edge.of(1.0, 0, len(module.codes) - 1)
    return KEPT if isinstance(module, KeptKeys) else None
