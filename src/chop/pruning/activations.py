"""Activation pruning: pruners before the calls of chosen layers."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, fx

from chop.captured.padding.hidden import visible, zeroed
from chop.errors import ConfigError
from chop.ir.batches import Batches, observe_batches, select_inputs
from chop.ir.graph import MaseGraph
from chop.ir.layers import Layer
from chop.ir.metadata import MaseMetadata
from chop.ir.rows import Measured, check_finite
from chop.nn.sparsity import PruneActivation, kth_smallest
from chop.pruning.layers import choose, prunable_layers
from chop.pruning.settings import WHERE, ActivationPruning, PruneConfig

BATCHES = f"{WHERE}.batches"


def prune_inputs(mg: MaseGraph, config: PruneConfig, settings: ActivationPruning) -> int:
    """Inserts a pruner before every call of the chosen layers, except embedding tables.

    Returns: the number of pruners.
    Raises:
        ConfigError: if the settings choose only embedding tables.
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
    """Sets the magnitude threshold below which the pruned share of all inputs lies.

    Raises:
        ConfigError: if a row of a batch causes NaN or infinite inputs.
    """
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

    given = list(select_inputs(mg, batches, BATCHES))

    def note(number: int, node: fx.Node, values: Mapping[fx.Node, Any], result: Any) -> None:
        if mg.get_module(node) in pruners:
            masked = zeroed(result)
            check_finite(masked, None, given[number], number, Measured(BATCHES, str(node.target)))
            magnitudes.append(visible(result).abs())

    observe_batches(mg, given, note)
    count = round(pruners[0].sparsity * sum(x.numel() for x in magnitudes))
    threshold = kth_smallest(magnitudes, count) if count else -math.inf
    for pruner in pruners:
        pruner.threshold = threshold


def _put_before(mg: MaseGraph, layer: Layer, node: fx.Node, pruner: PruneActivation) -> None:
    """Prunes a node's first input and replaces an existing pruner."""
    source = node.all_input_nodes[0]
    if isinstance(mg.get_module(source), PruneActivation):
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
    """Adds the pruner to the layer's parent module under an unused name."""
    parent, _, name = str(node.target).rpartition(".")
    owner = mg.model.get_submodule(parent)
    name += "_pruner"
    while hasattr(owner, name):
        name += "_"
    owner.add_module(name, pruner)
    return f"{parent}.{name}" if parent else name


def _described(mg: MaseGraph, call: fx.Node, source: fx.Node) -> MaseMetadata:
    metadata = MaseMetadata(call)
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
