"""Learned rounding: roundings and scales of a block's weights by the error of the block's output.

A block runs on what its predecessors, rounded already, give it; its output is compared with that of
the float block on the float predecessors' output. Where a model has no blocks, each layer is one
by itself and both read the same input.

Source: Cheng et al. 2023 (SignRound), arXiv:2309.05516, section 3 and algorithm 1; the inputs of
the blocks: its reference implementation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from chop.base.files.temporary import scratch_folder
from chop.formats import Float
from chop.ir.batches import Runs
from chop.ir.graph import MaseGraph
from chop.nn.quantized.base import quantizers_off
from chop.nn.weight_cache import cached_weights
from chop.private.modules import own_parameters
from chop.quantization.rounding.columns import Solver
from chop.quantization.rounding.gptq import correct_block, correctable_layers
from chop.quantization.rounding.input_energies import InputEnergies
from chop.quantization.rounding.learned_weights import LearnedWeight, why_not_learnable
from chop.quantization.rounding.row_weights import RowWeights, moderated, row_weights
from chop.quantization.walk.error import BlockError, list_outputs
from chop.quantization.walk.parts import Part, block_paths, get_parts
from chop.quantization.walk.values import NoBlocksError, Values
from chop.quantization.walk.walk import FloatBlock, Rounded, Walk, run_nodes

PASS = "learned_rounding_transform_pass"
WHERE = f"{PASS}.batches"
Layers = Mapping[fx.Node, Any]
PartErrors = dict[str, dict[str, float]]
"""By the path of a block or a layer, the squared error of its output relative to the output of the
float model, `before` learning and `after` it."""
SCALED = 2.0**20
"""What losses are multiplied by, so that gradients in float16 are not lost."""


@dataclass(frozen=True)
class Learning:
    """How roundings are learned.

    Attributes:
        steps: of signed gradient descent for each block.
        rows: of a step, at least; whole batches are taken.
        seed: of the order of the batches.
        solver: corrects the layers of a block first, by GPTQ; None: each weight starts at its
            nearest number.
        weighs_rows: whether rows count by `row_weights`, or all alike.
    """

    steps: int
    rows: int
    seed: int
    solver: Solver | None
    weighs_rows: bool


def learn_rounding(
    mg: MaseGraph, batches: Sequence[Mapping[str, Any]], learning: Learning
) -> tuple[PartErrors, dict[str, str]]:
    """Learns the rounded weights of a graph, block after block, or else layer after layer.

    Args:
        mg: the graph; its weights change in place.
        batches: from `select_inputs`.
        learning: how.
    Returns: the errors of each block; and the reason for each other node, and for each expert that
        saw too few rows.

    Raises:
        ConfigError: a batch brings NaN or infinite values.
    """
    layers, skipped = _learnable_layers(mg)
    if not layers:
        return {}, skipped
    with scratch_folder("rounding") as scratch:
        try:
            parts = _parts(mg, layers, batches[0], scratch)
        except NoBlocksError:
            parts = None
        learner = BlockLearning(Walk(mg, batches, scratch=scratch), learning, parts)
        found = Walk(mg, batches, parts, scratch, runs_float=parts is not None).run(learner)
    errors = {path: each for part in found for path, each in part.told.items()}
    return errors, skipped | {name: reason for part in found for name, reason in part.left.items()}


class BlockLearning:
    """A `Rounder` that learns the weights of a part, or of a whole graph layer by layer.

    Args:
        walk: of the graph.
        learning: how.
        parts: whose weights are learned, of which float ones run too; None: each layer by itself.

    Attributes:
        skipped: why layers are left alone whatever the rows, by name of node.

    Raises:
        NoBlocksError: a part gives nothing that can be compared.
    """

    def __init__(self, walk: Walk, learning: Learning, parts: Sequence[Part] | None) -> None:
        self._layers, self.skipped = _learnable_layers(walk.mg)
        self._learning = learning
        compared = [*self._layers] if parts is None else _outputs(self._layers, parts)
        solved = self._layers if learning.solver is not None else ()
        weighed = list(dict.fromkeys((*compared, *solved))) if learning.weighs_rows else []
        self._weights = moderated(row_weights(walk, weighed, WHERE)) if weighed else {}

    def __call__(self, block: FloatBlock) -> Rounded:
        """The errors of the part by its name, and the values after it."""
        exact = block.exact
        if exact is None:
            return self._layer_by_layer(block)
        part = _as_far_as(self._layers, block.part) if block.is_last else block.part
        if not any(node in self._layers for node in part.nodes):
            return Rounded()
        block = replace(block, part=part)
        errors, few, values = learn_block(
            block, exact, block.targets, self._layers, self._weights, self._learning
        )
        return Rounded({part.name: errors}, few, values)

    def _layer_by_layer(self, block: FloatBlock) -> Rounded:
        """Both the float layer and the rounded one read what those before, rounded, give."""
        told: PartErrors = {}
        left: dict[str, str] = {}

        def visit(node: fx.Node, runs: Runs) -> None:
            inputs = Values(block.mg.nodes, block.scratch)
            for number, values in enumerate(runs):
                inputs.put(number, {source: values[source] for source in node.all_input_nodes})
            path = str(node.target)
            own = FloatBlock(block.mg, Part(path, (node,)), inputs, block.batches, block.scratch)
            with quantizers_off(block.mg.model):
                targets = own.run()
            told[path], few, _ = learn_block(
                own, inputs, targets, self._layers, self._weights, self._learning
            )
            left.update(few)

        block.run([node for node in self._layers if node.users], visit)
        return Rounded(told, left)


def check_learnable(mg: MaseGraph, parts: Sequence[Part]) -> None:
    """Refuses what `BlockLearning` cannot compare.

    Args:
        mg: the graph, quantized.
        parts: all of a walk.

    Raises:
        NoBlocksError: a part gives nothing that can be compared.
    """
    _outputs(_learnable_layers(mg)[0], parts)


def _outputs(layers: Layers, parts: Sequence[Part]) -> list[fx.Node]:
    """Outputs to compare, of the parts that have layers.

    Raises:
        NoBlocksError: one has nothing to be compared.
    """
    found: list[fx.Node] = []
    for part in (*parts[:-1], _as_far_as(layers, parts[-1])):
        if any(node in layers for node in part.nodes):
            own = list_outputs(part)
            if not own:
                raise NoBlocksError(f"'{part.name}' gives no floating tensor")
            found += own
    return found


def _learnable_layers(mg: MaseGraph) -> tuple[dict[fx.Node, Any], dict[str, str]]:
    """The layers whose roundings can be learned; why each other node's cannot."""
    layers, skipped = correctable_layers(mg)
    for node, layer in list(layers.items()):
        reason = why_not_learnable(layer.spec.number_format("weight"))
        if reason is not None:
            skipped[node.name] = reason
            del layers[node]
    return layers, skipped


def _parts(mg: MaseGraph, layers: Layers, batch: Mapping[str, Any], scratch: Path) -> list[Part]:
    """The parts of a graph up to the last one with layers; of the last of all, nodes up to them.

    Raises:
        NoBlocksError: the graph cannot be cut, or a value between parts cannot be kept.
    """
    parts = get_parts(mg, block_paths(mg.model))
    parts[-1] = _as_far_as(layers, parts[-1])
    while not any(node in layers for node in parts[-1].nodes):
        parts.pop()
    with Walk(mg, [batch]).at_work():
        values: Mapping[fx.Node, Any] = {}
        for part in parts:
            values = run_nodes(mg, part.nodes, batch, values)
            Values(mg.nodes, scratch).put(0, values)
    _outputs(layers, parts)
    return parts


def _as_far_as(layers: Layers, part: Part) -> Part:
    """The last part of a graph up to its last layer."""
    own = [place for place, node in enumerate(part.nodes) if node in layers]
    return replace(part, nodes=part.nodes[: own[-1] + 1] if own else ())


def learn_block(
    block: FloatBlock,
    exact: Values,
    targets: Values | None,
    layers: Layers,
    weights: RowWeights,
    learning: Learning,
) -> tuple[dict[str, float], dict[str, str], Values | None]:
    """Replaces the weights of a part by those with which its output is nearest to the float one.

    Args:
        block: the part, its inputs from rounded predecessors.
        exact: the values that enter the float part.
        targets: those after it; None: they are computed when they are needed.
        layers: from `_learnable_layers`; those of other parts are passed over.
        weights: of the rows of results, by node; rows of others count alike.
        learning: how.
    Returns: the error `before` and `after`; why experts are left alone, by name; and the values
        after the part, None of the last one.
    """
    own = {node: layers[node] for node in block.part.nodes if node in layers}
    floats = {node: layer.effective("weight").detach().clone() for node, layer in own.items()}

    def computed(number: int) -> Mapping[fx.Node, Any]:
        if targets is not None:
            return targets.get(number)
        with quantizers_off(block.mg.model), _standing_in(own, floats), torch.no_grad():
            return block.run_batch(number, exact)

    compared = BlockError(block, computed, weights, WHERE)
    alone: Mapping[str, str] = {}
    if learning.solver is not None:
        _, alone, _ = correct_block(replace(block, is_last=True), own, weights, learning.solver)
    energies = InputEnergies(block, own, weights)
    kept = {node: layer.weight.detach().clone() for node, layer in own.items()}
    searches = learning.solver is None
    with _rounded_once(own):
        before, values = compared.run(energies.note)
        learned = {
            node: _learned(layer, floats[node], energies.of(node) if searches else None)
            for node, layer in own.items()
        }
    few = {node: energies.few(node) for node in own}
    changing = {node: _changing(layer, few[node]) for node, layer in own.items()}
    _descend(compared, own, learned, changing, learning)
    for node, layer in own.items():
        layer.weight.copy_(
            torch.where(changing[node], learned[node].rounded(kept[node]), kept[node])
        )
    with _rounded_once(own):
        after, found = compared.run()
    stay = "each weight is rounded to nearest" if searches else "it stays as GPTQ has left it"
    told = {
        f"{node.name}[{number}]": f"{reason}: {stay}"
        for node, reasons in few.items()
        for number, reason in reasons.items()
    }
    told.update((name, reason) for name, reason in alone.items() if name in told)
    if after < before:
        return {"before": before, "after": after}, told, found
    for node, layer in own.items():
        layer.weight.copy_(kept[node])
    return {"before": before, "after": before}, told, values


def _changing(layer: Any, few: Mapping[int, str]) -> Tensor:
    """Boolean, of a shape that expands to the weight's, False where it stays as it started."""
    if layer.is_pruned:
        mask: Tensor = layer.weight_mask
    else:
        mask = torch.ones((), dtype=torch.bool, device=layer.weight.device)
    if not few:
        return mask
    mask = mask.expand(layer.weight.shape).clone()
    mask.view(layer.num_experts, -1)[[*few]] = False
    return mask


def _learned(layer: Any, weight: Tensor, energies: Tensor | None) -> LearnedWeight:
    """From the weight as it is; with the energies of its inputs, from the nearest numbers."""
    start = None if energies is not None else layer.quantize("weight", layer.weight)
    masked = ~layer.weight_mask if layer.is_pruned else None
    number_format = layer.spec.number_format("weight")
    return LearnedWeight(number_format, weight, start, masked, energies)


def _descend(
    compared: BlockError,
    layers: Layers,
    learned: Mapping[fx.Node, LearnedWeight],
    changing: Mapping[fx.Node, Tensor],
    learning: Learning,
) -> None:
    """Steps against the signs of the gradient, their size falling to zero."""
    block = compared.block
    order = _order([_get_rows(batch) for batch in block.batches], learning)
    with _without_quantizers(layers):
        for step in range(learning.steps):
            rate = (1 - step / learning.steps) / learning.steps
            leaves = {node: x.values().requires_grad_() for node, x in learned.items()}
            for number in next(order):
                with torch.enable_grad(), _standing_in(layers, leaves):
                    values = block.run_batch(number, block.inputs)
                    loss = compared.loss(number, values) * SCALED
                if loss.requires_grad:
                    loss.backward(inputs=[*leaves.values()])
            for node, leaf in leaves.items():
                if leaf.grad is not None:
                    learned[node].learn(leaf.grad.masked_fill(~changing[node], 0), rate)


def _get_rows(batch: Mapping[str, Any]) -> int:
    tensors = [x for x in batch.values() if isinstance(x, Tensor) and x.dim() > 0]
    return len(tensors[0]) if tensors else 1


def _order(sizes: Sequence[int], learning: Learning) -> Iterator[list[int]]:
    """The batches of each step: in turn, in random order, until there are rows enough."""
    generator = torch.Generator().manual_seed(learning.seed)
    waiting: list[int] = []
    while True:
        chosen: list[int] = []
        while not chosen or sum(sizes[number] for number in chosen) < learning.rows:
            waiting = waiting or torch.randperm(len(sizes), generator=generator).tolist()
            chosen.append(waiting.pop())
            if len(chosen) == len(sizes):
                break
        yield chosen


@contextlib.contextmanager
def _rounded_once(layers: Layers) -> Iterator[None]:
    """Inside, without gradients, each weight is rounded once, not on each batch."""
    with contextlib.ExitStack() as stack:
        for layer in layers.values():
            stack.enter_context(cached_weights(layer))
        yield


@contextlib.contextmanager
def _without_quantizers(layers: Layers) -> Iterator[None]:
    """Inside, the weights of the layers are taken as they are."""
    specs = {layer: layer.spec for layer in layers.values()}
    try:
        for layer, spec in specs.items():
            layer.spec = spec.with_quantizers(weight=Float())
        yield
    finally:
        for layer, spec in specs.items():
            layer.spec = spec


@contextlib.contextmanager
def _standing_in(layers: Layers, leaves: Mapping[fx.Node, Tensor]) -> Iterator[None]:
    """Inside, the layers have tensors in the place of their weights, which get gradients."""
    own = {node: own_parameters(layer)["weight"] for node, layer in layers.items()}
    try:
        for node, layer in layers.items():
            own_parameters(layer)["weight"] = leaves[node]  # type: ignore[assignment]
        yield
    finally:
        for node, layer in layers.items():
            own_parameters(layer)["weight"] = own[node]
