"""Error of a block: how far its output is from that of the float block."""

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
    """The nodes of a part whose results are one floating tensor that later nodes read."""
    inside = set(part.nodes)
    return [node for node in part.nodes if set(node.users) - inside and _is_floating(node)]


def _is_floating(node: fx.Node) -> bool:
    results = node_metadata(node).common.results.values()
    is_one = len(results) == 1 and all(info.is_floating for info in results)
    return is_one and bool(node.all_input_nodes)


class BlockError:
    """The squared error of a part's output, summed over rows by their weights.

    Args:
        block: the part.
        targets: the values after the float part, by the number of a batch.
        weights: of the rows, by node; rows of others count alike.
        where: the setting that the batches come from, for messages.

    Raises:
        ConfigError: a row that counts is not finite.
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
        """The sum of the squares of a value of the node, in rows that count."""
        # Channels lie before the dimensions that a convolution slides over.
        channels = -1 - self.block.mg.operator(node).spatial
        of_rows = x.float().square().sum(channels if x.dim() >= -channels else ()).flatten()
        counted = counted_rows_by_layer(self.block.mg, node, x, self.block.batches[number])
        if node in self._weights:
            weights = self._weights[node][number].to(of_rows)
            counted = weights > 0
            return (of_rows[counted] * weights[counted]).sum()
        return of_rows.sum() if counted is None else of_rows[counted].sum()

    def loss(self, number: int, values: Mapping[fx.Node, Any]) -> Tensor:
        """The error of a batch relative to the mean over all batches of the float output."""
        terms = []
        for node, target in self._of(number).items():
            total = self._sum(node, number, values[node].float() - target.float())
            terms.append(total / self._energy[node])
        return torch.stack(terms).sum()

    def run(self, note: Note = lambda *_: None) -> tuple[float, Values | None]:
        """The error of all batches, relative to the float output, and the values after the part.

        These are not kept of the last part.

        Args:
            note: is shown the number of the batch, each node before it runs and the values so far.
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
