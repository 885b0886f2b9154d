"""Prunes weights by score, scope and granularity, and activations by share."""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, fx

from chop.errors import ConfigError
from chop.ir.batches import Batches, known_inputs, watch
from chop.ir.graph import MaseGraph
from chop.ir.layers import Layer
from chop.ir.metadata import MaseMetadata
from chop.nn.quantized import QuantizedOperator
from chop.nn.quantized.masks import full_weight
from chop.nn.sparsity import (
    SCORES,
    Evidence,
    Granularity,
    PruneActivation,
    Score,
    Scored,
    hidden_of,
    kth_smallest,
    lowest_weights,
    put_mask,
    sparsity_of,
    take_mask,
)
from chop.passes.base import MASE_KEYS, graph_pass
from chop.pruning.layers import as_carrier, choose, prunable_layers, with_sharers
from chop.pruning.saliency import gather
from chop.pruning.settings import WHERE, ActivationPruning, PruneConfig, WeightPruning
from chop.pruning.structured import shrink


@graph_pass(config=PruneConfig, ignores=MASE_KEYS)
def prune_transform_pass(mg: MaseGraph, config: PruneConfig) -> dict[str, Any]:
    """Hides the weights with the lowest scores, and prunes what flows into operators.

    Hidden weights are zero in `weight`, through training too; of each pruned layer a boolean
    buffer `weight_mask` says which weights count, and a buffer `weight_orig` keeps those that were
    hidden. Exactly round(sparsity * number) of a layer's weights are hidden, with scope `global`
    of all weights together. Pruning again chooses from the full weights anew. Layers that share a
    weight share the mask.

    Returns: `{"sparsity": share of the chosen layers' weights that is hidden, "hidden": their
        number, "weights": how many there are, "layers": sparsity by module path, "skipped": reason
        by module path, "activations": number of operators whose input is pruned}`; of structured
        granularities units are counted, and "parameters" are their number before and after.

    Raises:
        ConfigError: a setting is wrong, a selector means no layer, something that cannot carry a
            mask shares a chosen weight, or the data that the method looks at are missing.

    Example config::

        {"weight": {"sparsity": 0.5, "method": "l1-norm", "scope": "global"}}
    """
    if config.weight is not None and config.activation is not None and config.batches is not None:
        config = dataclasses.replace(config, batches=list(config.batches))
    info: dict[str, Any] = {"sparsity": 0.0, "hidden": 0, "weights": 0, "layers": {}, "skipped": {}}
    if config.weight is not None and Granularity.parse(config.weight.granularity).is_structured:
        info |= shrink(mg, config, config.weight)
    elif config.weight is not None:
        targets, info["skipped"] = take_targets(mg, config, config.weight)
        users = {target.path: target.layers for target in targets}
        evidence = gather(mg, users, config.weight.method, config.weight.seed, config.batches)
        hide_lowest(targets, config.weight, evidence)
        info |= count_hidden(targets)
    pruned = 0 if config.activation is None else _prune_inputs(mg, config, config.activation)
    return {**info, "activations": pruned}


# --- weights -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A weight to prune.

    Attributes:
        path: its layer.
        layers: those that use it.
        sparsity: the share to hide.
    """

    path: str
    layers: tuple[Layer, ...]
    sparsity: float

    @property
    def weight(self) -> Tensor:
        """The stored weight."""
        return self.layers[0].weight

    @property
    def modules(self) -> list[QuantizedOperator]:
        """The operators that use it; each carries the mask."""
        return [cast(QuantizedOperator, layer.module) for layer in self.layers]


def take_targets(
    mg: MaseGraph, config: PruneConfig, settings: WeightPruning
) -> tuple[list[Target], dict[str, str]]:
    """Makes the chosen layers of `mg` operators that can carry masks, and takes old masks off.

    Returns: the weights to prune, each once, and the reason by path of layers left out.
    """
    layers = prunable_layers(mg)
    chosen = choose(layers, settings.shares, config.include, config.exclude)
    granularity = Granularity.parse(settings.granularity)
    targets: list[Target] = []
    skipped: dict[str, str] = {}
    seen: set[int] = set()
    for layer, share in chosen.items():
        reason = granularity.obstacle(layer.weight.shape[layer.axes.inputs])
        if reason is not None:
            skipped[layer.path] = reason
        elif id(layer.module.weight) not in seen:
            seen.add(id(layer.module.weight))
            sharing = with_sharers(mg, layer, layers)
            targets.append(Target(layer.path, tuple(as_carrier(mg, s) for s in sharing), share))
    for target in targets:
        for module in target.modules:
            take_mask(module)
    return targets, skipped


def hide_lowest(
    targets: Sequence[Target],
    settings: WeightPruning,
    evidence: Mapping[str, Evidence],
    growing: bool = False,
) -> None:
    """Puts a mask on every target: the lowest scores are hidden.

    Args:
        targets: the weights.
        settings: score, granularity and scope.
        evidence: of each target, by path.
        growing: what is hidden already stays hidden.
    """
    if not targets:
        return
    score = SCORES[settings.method]
    scored = [_scored(target, score, evidence[target.path], growing) for target in targets]
    marks = lowest_weights(scored, score, Granularity.parse(settings.granularity), settings.scope)
    for target, hidden in zip(targets, marks, strict=True):
        full = full_weight(target.modules[0])
        for module in target.modules:
            put_mask(module, hidden, settings.note, full)


def _scored(target: Target, score: Score, evidence: Evidence, growing: bool) -> Scored:
    values = score.of(target.weight.detach(), evidence)
    hidden = hidden_of(target.modules[0]) if growing else None
    if hidden is not None:
        values = values.masked_fill(hidden, -math.inf)
    return Scored(values, target.layers[0].axes.inputs, target.sparsity)


def count_hidden(targets: Sequence[Target]) -> dict[str, Any]:
    """What is hidden now: the entries of that kind that the pass returns."""
    hidden = {target.path: hidden_of(target.modules[0]) for target in targets}
    count = sum(int(mask.sum()) for mask in hidden.values() if mask is not None)
    total = sum(target.weight.numel() for target in targets)
    return {
        "sparsity": count / max(total, 1),
        "hidden": count,
        "weights": total,
        "layers": {target.path: sparsity_of(target.modules[0]) for target in targets},
    }


# --- activations ---------------------------------------------------------------------------------


def _prune_inputs(mg: MaseGraph, config: PruneConfig, settings: ActivationPruning) -> int:
    """Puts a pruner before every call of the chosen layers; tables have no input to prune.

    Returns: how many.
    Raises:
        ConfigError: the settings choose nothing else than tables.
    """
    chosen = choose(prunable_layers(mg), settings.sparsity, config.include, config.exclude)
    layers = {layer: share for layer, share in chosen.items() if layer.row.is_product}
    if not layers:
        raise ConfigError(f"{WHERE}.activation: embedding tables have no input to prune.")
    pruners: list[PruneActivation] = []
    for layer, share in layers.items():
        for node in layer.nodes:
            pruner = PruneActivation(share, settings.method, settings.seed + len(pruners))
            _put_before(mg, layer, node, pruner)
            pruners.append(pruner)
    if settings.scope == "global" and settings.method == "l1-norm":
        _share_threshold(mg, pruners, config.batches)
    return len(pruners)


def _share_threshold(
    mg: MaseGraph, pruners: Sequence[PruneActivation], batches: Batches | None
) -> None:
    """Gives the pruners the magnitude below which their share of all that enters them lies."""
    if batches is None:
        warnings.warn(
            f"{WHERE}.activation: scope 'global' needs 'batches' to find a threshold; without "
            "them the share of each tensor is pruned, as with scope 'local'.",
            UserWarning,
            stacklevel=5,
        )
        return
    for pruner in pruners:
        pruner.threshold = -math.inf  # nothing is pruned while the model is watched
    magnitudes: list[Tensor] = []

    def note(node: fx.Node, values: Mapping[fx.Node, Any], result: Any) -> None:
        if mg.module_of(node) in pruners:
            magnitudes.append(result.abs())

    watch(mg, known_inputs(mg, batches, f"{WHERE}.batches"), note)
    count = round(pruners[0].sparsity * sum(x.numel() for x in magnitudes))
    threshold = kth_smallest(magnitudes, count) if count else -math.inf
    for pruner in pruners:
        pruner.threshold = threshold


def _put_before(mg: MaseGraph, layer: Layer, node: fx.Node, pruner: PruneActivation) -> None:
    """Prunes a node's first input; a pruner that is there already is replaced."""
    source = node.all_input_nodes[0]
    if isinstance(mg.module_of(source), PruneActivation):
        pruner.train(layer.module.training)
        mg.replace(source, pruner)
        return
    with mg.fx_graph.inserting_before(node):
        call = mg.fx_graph.call_module(_add_beside(mg, node, pruner), (source,))
    pruner.train(layer.module.training)
    node.replace_input_with(source, call)
    # The picture draws a node where its module lives, and shapes are those of the input.
    for key in ("nn_module_stack", "source"):
        if key in node.meta:
            call.meta[key] = node.meta[key]
    if "spec" in source.meta:
        call.meta["spec"] = source.meta["spec"]
    if "mase" in source.meta:
        call.meta["mase"] = _described(mg, call, source)


def _add_beside(mg: MaseGraph, node: fx.Node, pruner: PruneActivation) -> str:
    """Adds the pruner to the module that holds the layer, under a name of its own."""
    parent, _, name = str(node.target).rpartition(".")
    owner = mg.model.get_submodule(parent)
    name += "_pruner"
    while hasattr(owner, name):
        name += "_"
    owner.add_module(name, pruner)
    return f"{parent}.{name}" if parent else name


def _described(mg: MaseGraph, call: fx.Node, source: fx.Node) -> MaseMetadata:
    metadata = MaseMetadata()
    results = source.meta["mase"].common.results
    if results:
        row = mg.operator(call)
        metadata.common.mase_op, metadata.common.mase_type = row.name, row.mase_type
        described = [copy.copy(info) for info in results.values()]
        metadata.common.args = {f"data_in_{i}": info for i, info in enumerate(described)}
        metadata.common.results = {
            f"data_out_{i}": copy.copy(info) for i, info in enumerate(described)
        }
    return metadata
