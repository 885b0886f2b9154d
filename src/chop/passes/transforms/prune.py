"""Pruning of weights by score, scope and granularity, and of activations by share."""

from __future__ import annotations

import dataclasses
from typing import Any

from chop.ir.batches import check_are_listed
from chop.ir.graph import MaseGraph
from chop.nn.sparsity import Granularity
from chop.passes.base import MASE_KEYS, graph_pass
from chop.pruning.activations import prune_inputs
from chop.pruning.settings import WHERE, PruneConfig
from chop.pruning.structured import prune_structured
from chop.pruning.unstructured import prune_unstructured


@graph_pass(config=PruneConfig, ignores=MASE_KEYS)
def prune_transform_pass(mg: MaseGraph, config: PruneConfig) -> dict[str, Any]:
    """Masks the weights with the lowest scores, and prunes inputs of operators.

    Masked weights are zero in `weight`, also during training. Each pruned layer has a boolean
    buffer `weight_mask`, true for active weights, and a buffer `weight_orig` with the values of
    masked weights. Exactly round(sparsity * number) weights are masked, per layer or, with scope
    `global`, over all layers. Layers that share a weight share the mask.

    Existing masks stay, including those of `torch.nn.utils.prune`. The sparsity is a share of the
    remaining weights, as in torch: twice 0.5 masks 0.75. `chop.nn.sparsity.detach_mask(layer)`
    removes a mask.

    Returns:
        sparsity: masked share of the chosen layers' weights; for structured granularities, removed
            share of their units.
        hidden: number of masked weights or removed units.
        weights: number of all weights or units.
        layers: sparsity by module path.
        skipped: reason by module path.
        activations: number of operators with pruned inputs.
        parameters: number of the model's parameters before and after; only for structured
            granularities.

    Raises:
        ConfigError: if a setting is invalid, a selector matches no layer, a user of a chosen weight
            cannot carry a mask, required data are missing or not finite, or weights are NaN.

    Example config::

        {"weight": {"sparsity": 0.5, "method": "l1-norm", "scope": "global"}}
    """
    if config.batches is not None:
        check_are_listed(mg, config.batches, f"{WHERE}.batches")
        if config.weight is not None and config.activation is not None:
            config = dataclasses.replace(config, batches=list(config.batches))
    info: dict[str, Any] = {"sparsity": 0.0, "hidden": 0, "weights": 0, "layers": {}, "skipped": {}}
    if config.weight is not None:
        is_structured = Granularity.parse(config.weight.granularity).is_structured
        info |= (prune_structured if is_structured else prune_unstructured)(
            mg, config, config.weight
        )
    pruned = 0 if config.activation is None else prune_inputs(mg, config, config.activation)
    return {**info, "activations": pruned}
