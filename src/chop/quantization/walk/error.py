"""Block error: difference between the outputs of a block and its float version."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from chop.ir.graph import node_metadata
from chop.ir.rows import Measured, check_finite
from chop.quantization.rounding.experts import counted_rows_by_layer
from chop.quantization.rounding.row_weights import RowWeights
from chop.quantization.walk.parts import Part
from chop.quantization.walk.values import Values
from chop.quantization.walk.walk import FloatBlock, Note


def list_outputs(part: Part) -> list[fx.Node]:
    """Returns the nodes of a part whose result is a floating tensor that later nodes read."""
    inside = set(part.nodes)
    return [node for node in part.nodes if set(node.users) - inside and _is_floating(node)]


def _is_floating(node: fx.Node) -> bool:
    results = node_metadata(node).common.results.values()
    is_one = len(results) == 1 and all(info.is_floating for info in results)
    return is_one and bool(node.all_input_nodes)


class BlockError:
    """Squared error of a part's output, summed over weighted rows.

    Args:
        block: part to compare.
        targets: values after the float part by batch number.
        weights: row weights by node; equal for other nodes.
        where: setting of the batches, for messages.

    Raises:
        ConfigError: if a row that counts is not finite.
    """

    def __init__(
        self,
        block: FloatBlock,
        targets: Callable[[int], Mapping[fx.Node, Any]],
        weights: RowWeights,
        where: str,
    ) -> None:
        self.block, self._targets, self._weights = block, targets, weights
        self._measured = Measured(where, block.part.name)
        self._outputs = list_outputs(block.part)
        self._energy = {node: torch.finfo(torch.float64).tiny for node in self._outputs}
        for number in range(len(block.batches)):
            for node, target in self._of(number).items():
                rows = counted_rows_by_layer(block.mg, node, target, block.batches[number])
                check_finite(target, rows, block.batches[number], number, self._measured)
                self._energy[node] += self._sum(node, number, target).item()

    def _of(self, number: int) -> dict[fx.Node, Tensor]:
        values = self._targets(number)
        return {node: values[node] for node in self._outputs}

    def _sum(self, node: fx.Node, number: int, x: Tensor) -> Tensor:
        """Returns the sum of squares of a node's value over rows that count."""
        # Channels lie before the dimensions that a convolution slides over.
        channels = -1 - self.block.mg.operator(node).spatial
        row_sums = x.float().square().sum(channels if x.dim() >= -channels else ()).flatten()
        counted = counted_rows_by_layer(self.block.mg, node, x, self.block.batches[number])
        if node in self._weights:
            weights = self._weights[node][number].to(row_sums)
            counted = weights > 0
            return (row_sums[counted] * weights[counted]).sum()
        return row_sums.sum() if counted is None else row_sums[counted].sum()

    def loss(self, number: int, values: Mapping[fx.Node, Any]) -> Tensor:
        """Returns the error of a batch relative to the mean float output over all batches."""
        terms = []
        for node, target in self._of(number).items():
            total = self._sum(node, number, values[node].float() - target.float())
            terms.append(total / self._energy[node])
        return torch.stack(terms).sum()

    def run(self, note: Note = lambda *_: None) -> tuple[float, Values | None]:
        """Returns the relative error of all batches, and the values after the part.

        The last part has no values after it.

        Args:
            note: called with the batch number, each node before it runs and the values so far.
        """
        after = Values(self.block.mg.nodes, self.block.scratch)
        total = 0.0
        for number in range(len(self.block.batches)):
            before = functools.partial(note, number)
            values = self.block.run_batch(number, self.block.inputs, before)
            total += self.loss(number, values).item()
            if not self.block.is_last:
                after.put(number, values)
        return total, None if self.block.is_last else after
