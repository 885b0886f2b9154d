"""Structured pruning: removes channels and attention heads; the model becomes narrower."""

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
from chop.ir.graph.to_module import HEAD_COUNTS
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


@dataclass(frozen=True, eq=False)
class Group:
    """Dependency group: units that leave together.

    Attributes:
        names: what the info calls them: the layers that make them, or the attention.
        sources: the layers that make them: one, or query, key and value projections.
        trace: what has to be cut.
        sparsity: the share of units to take out.
    """

    names: tuple[str, ...]
    sources: tuple[Layer, ...]
    trace: ChannelTrace
    sparsity: float


def prune_structured(mg: MaseGraph, config: PruneConfig, settings: WeightPruning) -> dict[str, Any]:
    """Structured pruning: removes the lowest units of the chosen layers.

    A unit leaves with everything that only it reaches: what follows it sees nothing of it, also
    where an activation of zero is not zero. Layers whose outputs are added or multiplied lose the
    same units, the share of the first of them. Layers whose units reach a norm over all of them,
    the output or anything else that needs them stay whole. Each keeps one unit at least.

    Returns: `sparsity` (share of the units), `hidden` and `weights` (units removed, and all there
        were), `layers`, `skipped`, and `parameters`: their number before and after.

    Raises:
        GraphError: the graph has LoRA adapters, which would keep the old widths.
    """
    refuse_adapters(mg.model, "prune_transform_pass")
    groups, skipped = _groups(mg, config, settings)
    users = {source.path: [source] for group in groups for source in group.sources}
    score_inputs = gather_score_inputs(mg, users, settings.method, settings.seed, config.batches)
    scores = [_unit_scores(group, SCORES[settings.method], score_inputs) for group in groups]
    removed = _lowest_units(groups, scores, settings)
    before = _parameters(mg)
    is_noted = all("mase" in n.meta and node_metadata(n).common.mase_op for n in mg.nodes)
    noted = recorded_inputs(mg.model)
    for group, gone in zip(groups, removed, strict=True):
        group.trace.apply((~gone).nonzero()[:, 0].cpu())
    if settings.granularity == "head":
        _note_heads(mg, groups, removed)
    if groups and is_noted:
        annotate(mg, noted)
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
    """Corrects the numbers of heads in the configuration, where one number says it for all layers.

    Caches of a fixed size and files of transformers follow them.
    """
    config: Any = mg.model.record.config
    attentions = [node for node in mg.nodes if mg.operator(node).follow is attention]
    counts = {(len(gone), len(gone) - int(gone.sum())) for gone in removed}
    given: list[Any] = [getattr(config, name, None) for name in HEAD_COUNTS]
    heads, keys, size = given
    if len(counts) != 1 or len(groups) < len(attentions) or None in (heads, keys):
        return
    ((before, kept),) = counts
    if keys == before:
        config.head_dim = size or config.hidden_size // heads
        config.num_attention_heads, config.num_key_value_heads = heads // before * kept, kept


def _parameters(mg: MaseGraph) -> int:
    return sum(parameter.numel() for parameter in mg.model.parameters())


# --- which units ---------------------------------------------------------------------------------


def _groups(
    mg: MaseGraph, config: PruneConfig, settings: WeightPruning
) -> tuple[list[Group], dict[str, str]]:
    """The units that can leave, and the reason by name of those that cannot.

    Raises:
        ConfigError: heads are wanted, and there is no attention.
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
            "prune_transform_pass: granularity 'head' takes heads out of calls of "
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
    """The outputs of each chosen layer, with those that are added to or multiplied by them."""
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
    """The trace of a layer's outputs and of all that are joined with them, and the layers."""
    if not layer.row.is_product:
        raise BlockedError("a table has no output channels")
    if layer.axes.has_experts:
        raise BlockedError("it has the outputs of several experts")
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
    """The heads of each attention whose projections are all chosen; its output layer names it."""
    by_node = {node: layer for layer in chosen for node in layer.nodes}
    for call in mg.nodes:
        if mg.operator(call).follow is not attention:
            continue
        try:
            layers = [_projection(mg, node, by_node) for node in call.all_input_nodes[:3]]
            if len(set(layers)) < 3:
                raise BlockedError(f"'{layers[0].path}' gives its queries, keys and values at once")
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
    """How many heads of keys and values there are: queries that share one leave with it."""
    sizes = [shapes[node][-1] for node in call.all_input_nodes[:3]]
    pairs = zip(layers, sizes, strict=True)
    heads, keys, values = (layer.weight.shape[0] // size for layer, size in pairs)
    if keys != values or heads % keys:
        raise BlockedError(f"it has {heads} heads of queries, {keys} of keys, {values} of values")
    if keys == 1 < heads:
        raise BlockedError("all its heads share one of keys and values")
    return keys


def _projection(mg: MaseGraph, node: fx.Node, chosen: Mapping[fx.Node, Layer]) -> Layer:
    """The linear layer whose heads an input of an attention are, also after a rotation."""

    def sources(step: fx.Node) -> list[fx.Node]:
        given = [] if mg.operator(step).is_product else step.all_input_nodes
        if mg.operator(step).name == "getitem" and mg.operator(given[0]).name == "update_cache":
            return [given[0].args[1 + int(step.args[1])]]  # type: ignore[arg-type, list-item]
        return given

    found = [step for step in reached([node], sources) if mg.operator(step).is_product]
    if len(found) != 1:
        names = ", ".join(f"'{n.name}'" for n in found) or "none"
        raise BlockedError(f"'{node.name}' comes of no single layer ({names})")
    (made,) = found
    if made not in chosen:
        raise BlockedError(f"'{made.target}', which gives '{node.name}', is not chosen or no layer")
    return chosen[made]


# --- how many of them ----------------------------------------------------------------------------


def _unit_scores(group: Group, score: Score, score_inputs: Mapping[str, ScoreInputs]) -> Tensor:
    """One score per unit, the sum over the group's layers."""
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
    """Boolean per unit, True for those to remove: round(sparsity * units), but never all."""
    kept = [_with_a_survivor(values) for values in scores]
    if settings.scope == "global" and groups:
        total = sum(map(len, kept))
        return lowest(kept, min(round(groups[0].sparsity * total), total - len(kept)))
    return [
        lowest([values], min(round(group.sparsity * len(values)), len(values) - 1))[0]
        for group, values in zip(groups, kept, strict=True)
    ]


def _with_a_survivor(scores: Tensor) -> Tensor:
    values = scores.nan_to_num(torch.inf).clone()
    values[values.argmax()] = torch.inf
    return values
