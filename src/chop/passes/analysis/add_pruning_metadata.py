"""Pruning metadata: pruning of each layer's weight and input."""

from __future__ import annotations

from typing import Any

from torch import fx

from chop.ir.graph import MaseGraph, node_metadata
from chop.ir.layers import Layer
from chop.nn.sparsity import PruneActivation, describe_pruning, get_masked
from chop.passes.base import MASE_KEYS, NoConfig, graph_pass
from chop.pruning.layers import prunable_layers

UNPRUNED = {"method": None, "scope": None, "granularity": None}


@graph_pass(config=NoConfig, ignores=MASE_KEYS, requires=("init_metadata_analysis_pass",))
def add_pruning_metadata_analysis_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Sets `software["pruning"]` of every node that calls a prunable layer.

    It has `weight` and `data_in_0`, each with `sparsity` (the masked share, 0.0 before pruning),
    `method`, `scope` and `granularity` (None if nothing is pruned), and for the weight `hidden` and
    `numel`, both in elements. Run the pass again after pruning.

    Returns:
        layers: this mapping for each layer by module path.
        sparsity: masked share of all the weights, 0.0 to 1.0.
    """
    layers: dict[str, dict[str, Any]] = {}
    for layer in prunable_layers(mg):
        weight = _weight(layer)
        for node in layer.nodes:
            pruning = {"weight": dict(weight), "data_in_0": _data_in(mg, node)}
            node_metadata(node).software["pruning"] = pruning
            layers.setdefault(layer.path, pruning)
    weights = [pruning["weight"] for pruning in layers.values()]
    total = sum(weight["numel"] for weight in weights)
    return {
        "layers": layers,
        "sparsity": sum(weight["hidden"] for weight in weights) / max(total, 1),
    }


def _weight(layer: Layer) -> dict[str, Any]:
    mask, numel = get_masked(layer.module), layer.weight.numel()
    masked = 0 if mask is None else int(mask.sum())
    note = UNPRUNED | describe_pruning(layer.module)
    return {"sparsity": masked / max(numel, 1), **note, "hidden": masked, "numel": numel}


def _data_in(mg: MaseGraph, node: fx.Node) -> dict[str, Any]:
    pruner = mg.get_module(node.all_input_nodes[0])
    if not isinstance(pruner, PruneActivation):
        return {"sparsity": 0.0, **UNPRUNED}
    scope = "local" if pruner.threshold is None else "global"
    how = {"method": pruner.method, "scope": scope, "granularity": "elementwise"}
    return {"sparsity": pruner.sparsity, **how}
