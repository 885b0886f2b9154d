"""Learned rounding: rounding offsets and scales of a block's weights minimize its output error.

A block runs on the results of its rounded predecessors. Its output is compared with that of the
float block on the results of float predecessors. Without blocks, each layer is learned separately,
and both read the same input.

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
"""Squared output error relative to the output of the float model, `before` and `after` learning, by
the path of a block or layer.
"""
SCALED = 2.0**20
"""Loss scale that prevents underflow of float16 gradients."""


@dataclass(frozen=True)
class Learning:
    """Settings of learned rounding.

    Attributes:
        steps: steps of signed gradient descent per block.
        rows: minimum number of rows per step; batches are not split.
        seed: seed of the order of the batches.
        solver: corrects the layers of a block by GPTQ first; None starts from rounding to nearest.
        weighs_rows: weighs rows by `row_weights` instead of equally.
    """

    steps: int
    rows: int
    seed: int
    solver: Solver | None
    weighs_rows: bool


def learn_rounding(
    mg: MaseGraph, batches: Sequence[Mapping[str, Any]], learning: Learning
) -> tuple[PartErrors, dict[str, str]]:
    """Learns the rounded weights of a graph block by block, or layer by layer without blocks.

    Args:
        mg: graph whose weights change in place.
        batches: from `select_inputs`.
        learning: settings.
    Returns: the errors of each block, and the reasons for skipped nodes and for experts with too
    few rows.

    Raises:
        ConfigError: if a batch has NaN or infinite values.
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
        parts_rounded = Walk(mg, batches, parts, scratch, runs_float=parts is not None).run(learner)
    errors = {path: each for part in parts_rounded for path, each in part.report.items()}
    return errors, skipped | {
        name: reason for part in parts_rounded for name, reason in part.skipped.items()
    }


class BlockLearning:
    """`Rounder` that learns the weights of a part, or of a whole graph layer by layer.

    Args:
        walk: walk over the graph.
        learning: settings.
        parts: parts to learn, which also run in float; None learns each layer separately.

    Attributes:
        skipped: reasons by node name for layers that are skipped independently of the rows.

    Raises:
        NoBlocksError: if a part has no output to compare.
    """

    def __init__(self, walk: Walk, learning: Learning, parts: Sequence[Part] | None) -> None:
        self._layers, self.skipped = _learnable_layers(walk.mg)
        self._learning = learning
        compared = [*self._layers] if parts is None else _outputs(self._layers, parts)
        solved = self._layers if learning.solver is not None else ()
        weighed = list(dict.fromkeys((*compared, *solved))) if learning.weighs_rows else []
        self._weights = moderated(row_weights(walk, weighed, WHERE)) if weighed else {}

    def __call__(self, block: FloatBlock) -> Rounded:
        """Returns the errors of the part by name, and the values after it."""
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
        """Learns each layer on the results of rounded earlier ones, against its float version."""
        errors: PartErrors = {}
        skipped: dict[str, str] = {}

        def visit(node: fx.Node, runs: Runs) -> None:
            inputs = Values(block.mg.nodes, block.scratch)
            for number, values in enumerate(runs):
                inputs.put(number, {source: values[source] for source in node.all_input_nodes})
            path = str(node.target)
            own = FloatBlock(block.mg, Part(path, (node,)), inputs, block.batches, block.scratch)
            with quantizers_off(block.mg.model):
                targets = own.run()
            errors[path], few, _ = learn_block(
                own, inputs, targets, self._layers, self._weights, self._learning
            )
            skipped.update(few)

        block.run([node for node in self._layers if node.users], visit)
        return Rounded(errors, skipped)


def check_learnable(mg: MaseGraph, parts: Sequence[Part]) -> None:
    """Checks that `BlockLearning` can compare the outputs of all parts of a walk.

    Raises:
        NoBlocksError: if a part has no output to compare.
    """
    _outputs(_learnable_layers(mg)[0], parts)


def _outputs(layers: Layers, parts: Sequence[Part]) -> list[fx.Node]:
    """Returns the outputs to compare of the parts that have layers.

    Raises:
        NoBlocksError: if a part has no output to compare.
    """
    outputs: list[fx.Node] = []
    for part in (*parts[:-1], _as_far_as(layers, parts[-1])):
        if any(node in layers for node in part.nodes):
            own = list_outputs(part)
            if not own:
                raise NoBlocksError(f"'{part.name}' has no floating output")
            outputs += own
    return outputs


def _learnable_layers(mg: MaseGraph) -> tuple[dict[fx.Node, Any], dict[str, str]]:
    """Returns learnable layers, and the reason for each other node."""
    layers, skipped = correctable_layers(mg)
    for node, layer in list(layers.items()):
        reason = why_not_learnable(layer.spec.number_format("weight"))
        if reason is not None:
            skipped[node.name] = reason
            del layers[node]
    return layers, skipped


def _parts(mg: MaseGraph, layers: Layers, batch: Mapping[str, Any], scratch: Path) -> list[Part]:
    """Returns the parts of a graph up to the last one with layers, which ends at its last layer.

    Raises:
        NoBlocksError: if the graph cannot be cut, or a value between parts cannot be stored.
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
    """Returns the part of a graph up to its last layer."""
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
    """Replaces the weights of a part by those that minimize its output error.

    Args:
        block: the part, with inputs from rounded predecessors.
        exact: input values of the float part.
        targets: output values of the float part; None computes them.
        layers: from `_learnable_layers`; layers of other parts are ignored.
        weights: row weights by node; equal for other nodes.
        learning: settings.
    Returns: the error `before` and `after`; the reasons by name for skipped experts; and the values
    after the part, None for the last part.
    """
    own = {node: layers[node] for node in block.part.nodes if node in layers}
    floats = {node: layer.effective("weight").detach().clone() for node, layer in own.items()}

    if targets is None:
        with quantizers_off(block.mg.model), _standing_in(own, floats), torch.no_grad():
            targets = _run_all(block, exact)
    compared = BlockError(block, targets.get, weights, WHERE)
    alone: Mapping[str, str] = {}
    if learning.solver is not None:
        _, alone, _ = correct_block(replace(block, is_last=True), own, weights, learning.solver)
    energies = InputEnergies(block, own, weights)
    original = {node: layer.weight.detach().clone() for node, layer in own.items()}
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
            torch.where(changing[node], learned[node].rounded(original[node]), original[node])
        )
    with _rounded_once(own):
        after, values_after = compared.run()
    stay = "each weight is rounded to nearest" if searches else "it keeps the result of GPTQ"
    skipped = {
        f"{node.name}[{number}]": f"{reason}: {stay}"
        for node, reasons in few.items()
        for number, reason in reasons.items()
    }
    skipped.update((name, reason) for name, reason in alone.items() if name in skipped)
    if after < before:
        return {"before": before, "after": after}, skipped, values_after
    for node, layer in own.items():
        layer.weight.copy_(original[node])
    return {"before": before, "after": before}, skipped, values


def _run_all(block: FloatBlock, inputs: Values) -> Values:
    """Returns the values after a part, which `FloatBlock.run` omits for the last one."""
    after = Values(block.mg.nodes, block.scratch)
    for number in range(len(block.batches)):
        after.put(number, block.run_batch(number, inputs))
    return after


def _changing(layer: Any, few: Mapping[int, str]) -> Tensor:
    """Returns a boolean that broadcasts to the weight's shape, False for constant weights."""
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
    """Starts from the given weight, or with input energies from rounding to nearest."""
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
    """Takes signed gradient steps with a step size that decays to zero."""
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
                    learned[node].learn(_masked(leaf.grad, changing[node]), rate)


def _masked(gradient: Tensor, changing: Tensor) -> Tensor:
    """Returns the gradient with zeros for constant weights."""
    if changing.dim() == 0:  # all weights change; masking would copy the gradient
        return gradient
    return gradient.masked_fill(~changing, 0)


def _get_rows(batch: Mapping[str, Any]) -> int:
    tensors = [x for x in batch.values() if isinstance(x, Tensor) and x.dim() > 0]
    return len(tensors[0]) if tensors else 1


def _order(sizes: Sequence[int], learning: Learning) -> Iterator[list[int]]:
    """Yields the batches of each step: all in random order, grouped until there are enough rows."""
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
    """Rounds each weight once within the context, without gradients, instead of on each batch."""
    with contextlib.ExitStack() as stack:
        for layer in layers.values():
            stack.enter_context(cached_weights(layer))
        yield


@contextlib.contextmanager
def _without_quantizers(layers: Layers) -> Iterator[None]:
    """Disables the weight quantizers of layers within the context."""
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
    """Replaces the weights of layers by tensors with gradients within the context."""
    own = {node: own_parameters(layer)["weight"] for node, layer in layers.items()}
    try:
        for node, layer in layers.items():
            own_parameters(layer)["weight"] = leaves[node]  # type: ignore[assignment]
        yield
    finally:
        for node, layer in layers.items():
            own_parameters(layer)["weight"] = own[node]
