"""Input energies: the sum of squares of what each weight of a layer is multiplied by.

Each expert of a layer of experts has those of the rows that it saw.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from chop.ir.rows import Measured
from chop.nn.quantized import QuantExpertLinear
from chop.quantization.rounding.experts import (
    few_rows,
    layer_of_expert,
    rows_in,
    samples_of_experts,
    weighed_samples,
)
from chop.quantization.rounding.gptq import get_columns
from chop.quantization.rounding.row_weights import RowWeights
from chop.quantization.walk.walk import FloatBlock

WHERE = "input energies"


class InputEnergies:
    """Of the layers of a part, summed over the rows of all batches by their weights.

    Args:
        block: the part.
        layers: quantized Linear and Conv2d layers and layers of experts, by the nodes that call
            them.
        weights: of the rows, by node; rows of others count alike.
    """

    def __init__(
        self, block: FloatBlock, layers: Mapping[fx.Node, Any], weights: RowWeights
    ) -> None:
        self._block, self._layers, self._weights = block, layers, weights
        self._sums: dict[fx.Node, Tensor] = {}
        self._seen: dict[fx.Node, list[int]] = {}

    def note(self, number: int, node: fx.Node, values: Mapping[fx.Node, Any]) -> None:
        """Adds what a layer reads on a batch.

        Args:
            number: of the batch.
            node: any; those that call no such layer are passed over.
            values: of the nodes that have run.

        Raises:
            ConfigError: a row that counts is not finite.
        """
        if node not in self._layers:
            return
        layer, (source, *others) = self._layers[node], node.all_input_nodes
        weights = self._weights.get(node)
        has_experts = isinstance(layer, QuantExpertLinear)
        samples = [
            *weighed_samples(
                source,
                [values[source]],
                [self._block.batches[number]],
                None if weights is None else [weights[number]],
                Measured(WHERE, str(node.target)),
                has_experts,
            )
        ]
        parts, layers = [samples], [layer]
        if has_experts:
            parts = [*samples_of_experts(samples, [values[others[0]]], layer.num_experts)]
            layers = [layer_of_expert(layer, number) for number in range(layer.num_experts)]
            seen = self._seen.setdefault(node, [0] * len(parts))
            self._seen[node] = [n + rows_in(part) for n, part in zip(seen, parts, strict=True)]
        total = torch.cat([_energies(x, *part[0]) for x, part in zip(layers, parts, strict=True)])
        self._sums[node] = self._sums[node] + total if node in self._sums else total

    def few(self, node: fx.Node) -> dict[int, str]:
        """Why nothing is learned of some experts of a layer, by number."""
        inputs = self._layers[node].weight.shape[1]
        reasons = {n: few_rows(rows, inputs) for n, rows in enumerate(self._seen.get(node, ()))}
        return {number: reason for number, reason in reasons.items() if reason is not None}

    def of(self, node: fx.Node) -> Tensor:
        """Of each weight of a layer, float32, of a shape that expands to the weight's."""
        weight = self._layers[node].weight
        sums = self._sums.get(node)
        if sums is None:
            return torch.ones((), device=weight.device)
        if len(sums) == 1:
            return sums.view(1, *weight.shape[1:])
        return sums.repeat_interleave(len(weight) // len(sums), 0).view(weight.shape)


def _energies(layer: Any, x: Tensor, counted: Tensor | None) -> Tensor:
    """(G, D), of the groups of a convolution; G is 1 of other layers.

    A sum that is not finite tells nothing: rounding to nearest then minimizes no sum.
    """
    rows = get_columns(layer, x).square()
    if counted is not None:
        rows = torch.where(counted[:, None] > 0, rows * counted[:, None], 0)
    return rows.sum(1).nan_to_num(nan=0.0)
