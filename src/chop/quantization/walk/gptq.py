"""GPTQ of a block walk: row weights from gradients, and layers corrected stage by stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from chop.quantization.rounding.columns import Solver
from chop.quantization.rounding.gptq import (
    WHERE,
    LayerErrors,
    correct_layer,
    correctable_layers,
    rounded_weights,
)
from chop.quantization.rounding.row_weights import (
    Edges,
    RowWeights,
    moderated,
    row_weights,
    sampled_loss,
    squared_gradients,
)
from chop.quantization.walk.values import Values
from chop.quantization.walk.walk import BlockWalk, FloatBlock, Rounded, run_nodes


class BlockGptq:
    """A `Rounder` that corrects the layers of a part as `gptq_layers` does those of a graph.

    Args:
        walk: whose parts it rounds.
        solver: rounds one matrix.
        weighs_rows: whether rows count by `row_weights`, or all alike.

    Attributes:
        skipped: why layers are left alone whatever the rows, by name of node.
    """

    def __init__(self, walk: BlockWalk, solver: Solver, weighs_rows: bool) -> None:
        self._layers, self.skipped = correctable_layers(walk.mg)
        self._solver, self._weights = solver, RowWeights()
        if weighs_rows and self._layers:
            self._weights = moderated(block_row_weights(walk, list(self._layers)))

    def __call__(self, block: FloatBlock) -> Rounded:
        """The errors of each layer by its path, and the values after the part."""
        errors, few, values = correct_block(block, self._layers, self._weights, self._solver)
        return Rounded(dict(errors), few, values)


def correct_block(
    block: FloatBlock, layers: Mapping[fx.Node, Any], row_weights: RowWeights, solver: Solver
) -> tuple[LayerErrors, dict[str, str], Values]:
    """Corrects the layers of a part, stage by stage.

    Args:
        block: the part.
        layers: from `correctable_layers`; those of other parts are passed over.
        row_weights: by layer; rows of others count alike.
        solver: rounds one matrix.
    Returns: the errors of each layer by its path; why experts are left alone, by name; and the
        values after the part.
    """
    stages = _stages([node for node in block.part.nodes if node in layers])
    errors: LayerErrors = {}
    skipped: dict[str, str] = {}

    with rounded_weights() as settle:

        def visit(stage: Sequence[fx.Node], values: Values) -> None:
            for node in stage:
                layer, weights = layers[node], row_weights.get(node)

                def of_batches(source: fx.Node) -> Iterator[Any]:
                    return (values.get(number)[source] for number in range(len(block.batches)))

                found, few = correct_layer(
                    block.mg, node, of_batches, block.batches, weights, solver
                )
                errors.update(found)
                skipped.update(few)
                if not few:
                    settle(layer)

        values = block.run(stages, visit)
    return errors, skipped, values


def _stages(nodes: Sequence[fx.Node]) -> list[list[fx.Node]]:
    """Layers one after the other that read the same value are corrected at once."""
    stages: list[list[fx.Node]] = []
    for node in nodes:
        if stages and stages[-1][0].all_input_nodes[0] is node.all_input_nodes[0]:
            stages[-1].append(node)
        else:
            stages.append([node])
    return stages


def block_row_weights(walk: BlockWalk, nodes: Sequence[fx.Node], where: str = WHERE) -> RowWeights:
    """`row_weights` of a graph of which one part has its weights in memory.

    A batch runs forward through the parts, and back through each part again from its last to its
    first; the values between them are kept.
    """

    def of_batch(_: Any, edges: Edges, generator: torch.Generator) -> dict[fx.Node, Tensor]:
        return _of_batch(walk, edges, generator)

    return row_weights(walk.mg, nodes, walk.batches, where, of_batch)


def _of_batch(walk: BlockWalk, edges: Edges, generator: torch.Generator) -> dict[fx.Node, Tensor]:
    entering, learning = Values(walk.mg.nodes, walk.files.scratch), list[set[fx.Node]]()
    values: dict[fx.Node, Any] = {}
    learned: set[fx.Node] = set()
    for number, part in enumerate(walk.parts[:-1]):
        entering.put(number, values)
        learning.append(learned)
        with walk.loaded(part):
            values = run_nodes(walk.mg, part.nodes, edges.batch, _leaves(values, learned))
        learned = {n for n, x in values.items() if isinstance(x, Tensor) and x.requires_grad}
        values = {node: _detached(x) for node, x in values.items()}
    entering.put(len(walk.parts) - 1, values)
    learning.append(learned)
    gradients: dict[fx.Node, Tensor | None] = {}
    back: Mapping[fx.Node, Tensor] | None = None
    for number in reversed(range(len(walk.parts))):
        part, leaves = walk.parts[number], _leaves(entering.get(number), learning[number])
        seen = Edges(edges.nodes, edges.batch, edges.number, edges.where)
        with walk.loaded(part):
            after = run_nodes(walk.mg, part.nodes, edges.batch, leaves, seen)
            if back is None:
                roots = [sampled_loss(walk.mg, after[walk.mg.nodes[-1]], edges, generator)]
                ends = None
            else:
                roots, ends = [after[node] for node in back], list(back.values())
            sources = [node for node in leaves if node in learning[number]]
            wanted = [*(leaves[node] for node in sources), *seen.edges.values()]
            found = (
                torch.autograd.grad(roots, wanted, ends, allow_unused=True)
                if wanted and roots
                else ()
            )
        back = {n: g for n, g in zip(sources, found, strict=False) if g is not None}
        gradients.update(zip(seen.edges, found[len(sources) :], strict=True))
        edges.shapes.update(seen.shapes)
        edges.rows.update(seen.rows)
    return squared_gradients(walk.mg, edges, gradients)


def _leaves(values: Mapping[fx.Node, Any], learned: set[fx.Node]) -> dict[fx.Node, Any]:
    """The values that enter a part, of which some get a gradient."""
    return {
        node: x.detach().requires_grad_() if node in learned else x for node, x in values.items()
    }


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value
