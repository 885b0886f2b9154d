"""Structured pruning: removal of channels and attention heads, which narrows the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from chop.base.reach import reached
from chop.errors import ConfigError
from chop.ir.annotate import annotate
from chop.ir.graph import MaseGraph, node_metadata
from chop.ir.graph.to_module import HEAD_COUNTS, MLP_WIDTH
from chop.ir.layers import Layer
from chop.ir.ops.dimensions import attention
from chop.ir.ops.row import BlockedError, Shape
from chop.ir.propagate import example_inputs, propagate, recorded_inputs
from chop.nn.lora import refuse_adapters
from chop.nn.quantized import QuantizedOperator
from chop.nn.sparsity import SCORES, Score, ScoreInputs, lowest, unit_scores
from chop.pruning.channel_dependencies import ChannelTrace
from chop.pruning.layers import choose, prunable_layers
from chop.pruning.saliency import compute_scores, gather_score_inputs
from chop.pruning.settings import PruneConfig, WeightPruning
from chop.pruning.unit_norms import gather_unit_norms


@dataclass(frozen=True, eq=False)
class Group:
    """Dependency group: units that are removed together.

    Attributes:
        names: names in the info: the layers that compute the units, or the attention.
        sources: layers that compute the units: one, or query, key and value projections.
        trace: required cuts.
        sparsity: share of units to remove.
    """

    names: tuple[str, ...]
    sources: tuple[Layer, ...]
    trace: ChannelTrace
    sparsity: float


def prune_structured(mg: MaseGraph, config: PruneConfig, settings: WeightPruning) -> dict[str, Any]:
    """Removes the lowest-scored units of the chosen layers.

    A unit is removed with everything that only it reaches, including the constant that an
    activation returns for zero. Layers whose outputs are added or multiplied lose the same units,
    by the share of the first layer. Layers stay complete if their units reach a norm over all
    units, the model's output, or another operation that needs them. Each layer keeps at least one
    unit.

    Returns: `sparsity` (share of the units), `hidden` and `weights` (removed units and all units),
    `layers`, `skipped`, and `parameters`: number before and after.

    Raises:
        GraphError: if the graph has LoRA adapters, which would keep the old widths.
    """
    refuse_adapters(mg.model, "prune_transform_pass")
    groups, skipped = _groups(mg, config, settings)
    users = {source.path: [source] for group in groups for source in group.sources}
    score_inputs = gather_score_inputs(mg, users, settings.method, settings.seed, config.batches)
    if SCORES[settings.method].needs == "units":
        traced = [(group.trace, group.sources) for group in groups]
        gather_unit_norms(mg, traced, score_inputs, config.batches)
    scores = [_unit_scores(group, SCORES[settings.method], score_inputs) for group in groups]
    removed = _lowest_units(groups, scores, settings)
    before = _parameters(mg)
    has_metadata = all("mase" in n.meta and node_metadata(n).common.mase_op for n in mg.nodes)
    example_inputs = recorded_inputs(mg.model)
    for group, gone in zip(groups, removed, strict=True):
        group.trace.apply((~gone).nonzero()[:, 0].cpu())
    if settings.granularity == "head":
        _note_heads(mg, groups, removed)
    else:
        _note_width(mg, groups, removed)
    if groups and has_metadata:
        annotate(mg, example_inputs)
    total, count = sum(map(len, removed)), sum(int(gone.sum()) for gone in removed)
    pairs = [(n, gone) for group, gone in zip(groups, removed, strict=True) for n in group.names]
    shares = {name: int(gone.sum()) / len(gone) for name, gone in pairs}
    return {
        "sparsity": count / max(total, 1),
        "hidden": count,
        "weights": total,
        "layers": shares,
        "skipped": skipped,
        "parameters": (before, _parameters(mg)),
    }


def _note_heads(mg: MaseGraph, groups: Sequence[Group], removed: Sequence[Tensor]) -> None:
    """Updates the head counts of the configuration, if one count applies to all layers.

    Caches of a fixed size and transformers files use these counts.
    """
    config: Any = mg.model.record.config
    attentions = [node for node in mg.nodes if mg.operator(node).follow is attention]
    counts = {(len(gone), len(gone) - int(gone.sum())) for gone in removed}
    given: list[Any] = [getattr(config, name, None) for name in HEAD_COUNTS]
    heads, keys, size = given
    if len(counts) != 1 or len(groups) < len(attentions) or None in (heads, keys):
        return
    ((before, remaining),) = counts
    if keys == before:
        config.head_dim = size or config.hidden_size // heads
        config.num_attention_heads, config.num_key_value_heads = (
            heads // before * remaining,
            remaining,
        )


def _note_width(mg: MaseGraph, groups: Sequence[Group], removed: Sequence[Tensor]) -> None:
    """Updates the MLP width of the configuration, if one width applies to all layers."""
    config: Any = mg.model.record.config
    layers, width = (getattr(config, name, None) for name in ("num_hidden_layers", MLP_WIDTH))
    counts = [len(gone) - int(gone.sum()) for gone in removed if len(gone) == width]
    if len(set(counts)) == 1 and len(counts) == layers:
        setattr(config, MLP_WIDTH, counts[0])


def _parameters(mg: MaseGraph) -> int:
    return sum(parameter.numel() for parameter in mg.model.parameters())


# --- which units ---------------------------------------------------------------------------------


def _groups(
    mg: MaseGraph, config: PruneConfig, settings: WeightPruning
) -> tuple[list[Group], dict[str, str]]:
    """Returns the removable units, and the reasons by name for the others.

    Raises:
        ConfigError: if heads are requested, and the graph has no attention.
    """
    chosen = choose(prunable_layers(mg), settings.shares, config.include, config.exclude)
    shapes = _shapes(mg)
    make = _head_groups if settings.granularity == "head" else _channel_groups
    groups: list[Group] = []
    skipped: dict[str, str] = {}
    for name, group in make(mg, chosen, shapes):
        if isinstance(group, Group):
            groups.append(group)
        else:
            skipped[name] = group
    taken = {name for group in groups for name in group.names}
    skipped = {name: reason for name, reason in skipped.items() if name not in taken}
    if not groups and not skipped:
        raise ConfigError(
            "prune_transform_pass: granularity 'head' removes heads from calls of "
            "scaled_dot_product_attention, and the graph has none; choose 'channel'."
        )
    return groups, skipped


def _shapes(mg: MaseGraph) -> dict[fx.Node, Shape]:
    shapes: dict[fx.Node, Shape] = {}

    def note(node: fx.Node, result: Any) -> None:
        shapes[node] = tuple(map(int, result.shape)) if isinstance(result, Tensor) else ()

    propagate(mg.model, example_inputs(mg.model), note)
    return shapes


def _channel_groups(
    mg: MaseGraph, chosen: Mapping[Layer, float], shapes: Mapping[fx.Node, Shape]
) -> Iterator[tuple[str, Group | str]]:
    """Returns the outputs of each chosen layer, joined with those that are added or multiplied."""
    taken: set[Layer] = set()
    for layer, share in chosen.items():
        if layer in taken:
            continue
        try:
            trace, layers = _joint_trace(mg, layer, chosen, shapes)
            taken.update(layers)
            names = tuple(each.path for each in layers)
            yield layer.path, Group(names, tuple(layers), trace, share)
        except BlockedError as error:
            yield layer.path, str(error)


def _joint_trace(
    mg: MaseGraph, layer: Layer, chosen: Iterable[Layer], shapes: Mapping[fx.Node, Shape]
) -> tuple[ChannelTrace, list[Layer]]:
    """Returns the trace of a layer's outputs and of all joined ones, and their layers."""
    if not layer.row.is_product:
        raise BlockedError("an embedding table has no output channels")
    if layer.axes.has_experts:
        raise BlockedError("it has outputs of several experts")
    by_node = {node: each for each in chosen for node in each.nodes}
    trace = ChannelTrace(mg, shapes, layer.weight.shape[layer.axes.outputs])
    layers = [layer]
    trace.start(layer.nodes[0])
    while (missing := trace.missing()) is not None:
        node = trace.maker(*missing)
        partner = by_node.get(node) if node is not None else None
        if node is None or partner is None or partner in layers:
            raise BlockedError(f"they are joined with '{missing[0].name}'")
        layers.append(partner)
        trace.start(node)
    return trace, layers


def _head_groups(
    mg: MaseGraph, chosen: Mapping[Layer, float], shapes: Mapping[fx.Node, Shape]
) -> Iterator[tuple[str, Group | str]]:
    """Yields the heads of each attention with all projections chosen, by its output layer."""
    by_node = {node: layer for layer in chosen for node in layer.nodes}
    for call in mg.nodes:
        if mg.operator(call).follow is not attention:
            continue
        try:
            layers = [_projection(mg, node, by_node) for node in call.all_input_nodes[:3]]
            if len(set(layers)) < 3:
                raise BlockedError(f"'{layers[0].path}' computes queries, keys and values together")
            units = _units(call, layers, shapes)
            trace = ChannelTrace(mg, shapes, units)
            for layer in layers:
                trace.start(layer.nodes[0], layer.weight.shape[0] // units)
            if trace.missing() is not None:
                raise BlockedError("only some of its inputs are heads")
            yield call.name, Group((call.name,), tuple(layers), trace, chosen[layers[0]])
        except BlockedError as error:
            yield call.name, str(error)


def _units(call: fx.Node, layers: Sequence[Layer], shapes: Mapping[fx.Node, Shape]) -> int:
    """Returns the number of key-value heads; queries that share one are removed with it."""
    sizes = [shapes[node][-1] for node in call.all_input_nodes[:3]]
    pairs = zip(layers, sizes, strict=True)
    heads, keys, values = (layer.weight.shape[0] // size for layer, size in pairs)
    if keys != values or heads % keys:
        raise BlockedError(f"it has {heads} query, {keys} key and {values} value heads")
    if keys == 1 < heads:
        raise BlockedError("all its heads share one key-value head")
    return keys


def _projection(mg: MaseGraph, node: fx.Node, chosen: Mapping[fx.Node, Layer]) -> Layer:
    """Returns the linear layer that computes an attention input, possibly before a rotation."""

    def sources(step: fx.Node) -> list[fx.Node]:
        given = [] if mg.operator(step).is_product else step.all_input_nodes
        if mg.operator(step).name == "getitem" and mg.operator(given[0]).name == "update_cache":
            return [given[0].args[1 + int(step.args[1])]]  # type: ignore[arg-type, list-item]
        return given

    products = [step for step in reached([node], sources) if mg.operator(step).is_product]
    if len(products) != 1:
        names = ", ".join(f"'{n.name}'" for n in products) or "none"
        raise BlockedError(f"'{node.name}' does not come from a single layer ({names})")
    (made,) = products
    if made not in chosen:
        raise BlockedError(
            f"'{made.target}', which computes '{node.name}', is not a selected layer"
        )
    return chosen[made]


# --- how many of them ----------------------------------------------------------------------------


def _unit_scores(group: Group, score: Score, score_inputs: Mapping[str, ScoreInputs]) -> Tensor:
    """Returns one score per unit, summed over the group's layers."""
    total = torch.zeros(group.trace.units, dtype=torch.float64)
    for source in group.sources:
        module = source.module
        masked = isinstance(module, QuantizedOperator) and module.is_pruned
        weight = module.effective("weight") if masked else source.weight  # type: ignore[operator]
        values = compute_scores(source.path, weight, score, score_inputs[source.path])
        per_output = unit_scores(values, source.axes.outputs, score)
        total += per_output.view(group.trace.units, -1).mean(1).cpu()
    return total


def _lowest_units(
    groups: Sequence[Group], scores: Sequence[Tensor], settings: WeightPruning
) -> list[Tensor]:
    """Returns a boolean per unit, True for the round(sparsity * units) to remove, but never all."""
    candidates = [_with_a_survivor(values) for values in scores]
    if settings.scope == "global" and groups:
        total = sum(map(len, candidates))
        return lowest(candidates, min(round(groups[0].sparsity * total), total - len(candidates)))
    return [
        lowest([values], min(round(group.sparsity * len(values)), len(values) - 1))[0]
        for group, values in zip(groups, candidates, strict=True)
    ]


def _with_a_survivor(scores: Tensor) -> Tensor:
    values = scores.nan_to_num(torch.inf).clone()
    values[values.argmax()] = torch.inf
    return values
