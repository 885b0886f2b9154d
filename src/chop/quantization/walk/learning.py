"""Learned rounding of a block walk: float parts run beside the rounded ones, a block at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from chop.ir.graph import MaseGraph
from chop.quantization.rounding.learned import (
    WHERE,
    Learning,
    as_far_as,
    learn_block,
    learnable_layers,
    learned_parts,
    weighed_nodes,
)
from chop.quantization.rounding.row_weights import moderated
from chop.quantization.walk.error import outputs_of
from chop.quantization.walk.gptq import block_row_weights
from chop.quantization.walk.walk import BlockWalk, FloatBlock, Part, Rounded


class BlockLearning:
    """A `Rounder` that learns the weights of a part as `learn_rounding` does those of a graph.

    Args:
        walk: whose parts it rounds; its float parts run too.
        learning: how.

    Attributes:
        skipped: why layers are left alone whatever the rows, by name of node.
    """

    def __init__(self, walk: BlockWalk, learning: Learning) -> None:
        self._layers, self.skipped = learnable_layers(walk.mg)
        self._learning = learning
        learned = _learned(walk.parts, self._layers)
        outputs = [node for part in learned for node in outputs_of(part)]
        nodes = weighed_nodes(outputs, self._layers, learning)
        self._weights = moderated(block_row_weights(walk, nodes, WHERE)) if nodes else {}

    def __call__(self, block: FloatBlock) -> Rounded:
        """The errors of the part by its name, and the values after it."""
        part = as_far_as(self._layers, block.part) if block.is_last else block.part
        if not any(node in self._layers for node in part.nodes):
            return Rounded()
        assert block.exact is not None
        told, few, values = learn_block(
            replace(block, part=part),
            block.exact,
            block.targets,
            self._layers,
            self._weights,
            self._learning,
        )
        return Rounded({part.name: told}, few, values)


def check_learnable(mg: MaseGraph, parts: Sequence[Part]) -> None:
    """Refuses what `BlockLearning` cannot compare.

    Args:
        mg: the graph, quantized.
        parts: all of a walk.

    Raises:
        NoBlocksError: a part gives nothing that can be compared.
    """
    layers, _ = learnable_layers(mg)
    _learned(parts, layers)


def _learned(parts: Sequence[Part], layers: Mapping[fx.Node, Any]) -> list[Part]:
    return learned_parts([*parts[:-1], as_far_as(layers, parts[-1])], layers)
