"""Indices and masks as circuit inputs: integers that the host sends unencoded."""

from __future__ import annotations

from torch import fx, nn

from chop.errors import ConfigError
from chop.hardware.design.values import MASK_EDGE
from chop.ir.graph import MaseGraph
from chop.nn.integer import Edge, IntegerEmbedding, IntegerPosition
from chop.nn.integer.mask import KeptKeys


def index_edge(mg: MaseGraph, node: fx.Node) -> Edge:
    """Returns the range of an integer input: rows of its embedding tables, or 0 and 1 for a flag.

    Raises:
        ConfigError: if an operator without a circuit reads it.
    """
    edges = [_edge(module) for module in _readers(mg, node)]
    # An index that is read by several tables has to be a row of the smallest one.
    highest = min((edge.high for edge in edges if edge is not None), default=None)
    if highest is None or None in edges:
        raise ConfigError(
            "expected integers read by embeddings, attention masks or position counters only"
        )
    return Edge.of(1.0, 0, highest)


def _readers(mg: MaseGraph, node: fx.Node) -> list[nn.Module | None]:
    """Returns the readers of an input, through operators that only move data."""
    readers: list[nn.Module | None] = []
    for user in node.users:
        moves = mg.operator(user).only_moves and mg.operator(user).layout != "read"
        readers += _readers(mg, user) if moves else [mg.get_module(user)]
    return readers


def _edge(module: nn.Module | None) -> Edge | None:
    if isinstance(module, IntegerEmbedding):
        return Edge.of(1.0, 0, len(module.codes) - 1)
    return MASK_EDGE if isinstance(module, KeptKeys | IntegerPosition) else None
