"""Input energies: the sum of squared inputs of each weight of a layer.

Each expert has its own, from the rows routed to it.
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
    """Input energies of the layers of a part, summed over the weighted rows of all batches.

    Args:
        block: the part.
        layers: quantized Linear, Conv2d and expert layers, by the nodes that call them.
        weights: row weights by node; equal for other nodes.
    """

    def __init__(
        self, block: FloatBlock, layers: Mapping[fx.Node, Any], weights: RowWeights
    ) -> None:
        self._block, self._layers, self._weights = block, layers, weights
        self._sums: dict[fx.Node, Tensor] = {}
        self._seen: dict[fx.Node, list[int]] = {}

    def note(self, number: int, node: fx.Node, values: Mapping[fx.Node, Any]) -> None:
        """Adds the input of a layer on a batch.

        Args:
            number: number of the batch.
            node: any node; other nodes are ignored.
            values: values of the nodes that have run.

        Raises:
            ConfigError: if a row that counts is not finite.
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
        """Returns reasons by number for experts of a layer with too few rows."""
        inputs = self._layers[node].weight.shape[1]
        reasons = {n: few_rows(rows, inputs) for n, rows in enumerate(self._seen.get(node, ()))}
        return {number: reason for number, reason in reasons.items() if reason is not None}

    def of(self, node: fx.Node) -> Tensor:
        """Returns the energy per weight of a layer, float32, broadcastable to the weight."""
        weight = self._layers[node].weight
        sums = self._sums.get(node)
        if sums is None:
            return torch.ones((), device=weight.device)
        if len(sums) == 1:
            return sums.view(1, *weight.shape[1:])
        return sums.repeat_interleave(len(weight) // len(sums), 0).view(weight.shape)


def _energies(layer: Any, x: Tensor, counted: Tensor | None) -> Tensor:
    """Returns the energies (G, D) of the groups of a convolution; G is 1 for other layers.

    A non-finite sum carries no information; such groups are rounded to nearest.
    """
    rows = get_columns(layer, x).square()
    if counted is not None:
        rows = torch.where(counted[:, None] > 0, rows * counted[:, None], 0)
    return rows.sum(1).nan_to_num(nan=0.0)
