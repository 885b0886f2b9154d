"""Prunes weights by score, scope and granularity, and activations by share."""

from __future__ import annotations

import dataclasses
from typing import Any

from chop.ir.graph import MaseGraph
from chop.nn.sparsity import Granularity
from chop.passes.base import MASE_KEYS, graph_pass
from chop.pruning.activations import prune_inputs
from chop.pruning.settings import PruneConfig
from chop.pruning.structured import prune_structured
from chop.pruning.unstructured import prune_unstructured


@graph_pass(config=PruneConfig, ignores=MASE_KEYS)
def prune_transform_pass(mg: MaseGraph, config: PruneConfig) -> dict[str, Any]:
    """Hides the weights with the lowest scores, and prunes what flows into operators.

    Hidden weights are zero in `weight`, through training too; of each pruned layer a boolean
    buffer `weight_mask` says which weights count, and a buffer `weight_orig` keeps those that were
    masked. Exactly round(sparsity * number) of a layer's weights are masked, with scope `global`
    of all weights together. Layers that share a weight share the mask.

    What is masked already stays masked, also by `torch.nn.utils.prune`, and the sparsity is a share
    of the rest, as for a second pruning of torch: twice 0.5 masks 0.75.
    `chop.nn.sparsity.detach_mask(layer)` takes a mask off.

    Returns:
        sparsity: share of the chosen layers' weights that is masked now; of structured
            granularities, share of their units that was removed.
        hidden: number of masked weights, or of removed units.
        weights: number of all weights, or of units.
        layers: sparsity by module path.
        skipped: reason by module path.
        activations: number of operators whose input is pruned.
        parameters: with structured granularities alone: number of the model's parameters before and
            after.

    Raises:
        ConfigError: a setting is wrong, a selector means no layer, something that cannot carry a
            mask shares a chosen weight, the data that the method looks at are missing or not
            finite, or weights are NaN.

    Example config::

        {"weight": {"sparsity": 0.5, "method": "l1-norm", "scope": "global"}}
    """
    if config.weight is not None and config.activation is not None and config.batches is not None:
        config = dataclasses.replace(config, batches=list(config.batches))
    info: dict[str, Any] = {"sparsity": 0.0, "hidden": 0, "weights": 0, "layers": {}, "skipped": {}}
    if config.weight is not None:
        is_structured = Granularity.parse(config.weight.granularity).is_structured
        info |= (prune_structured if is_structured else prune_unstructured)(
            mg, config, config.weight
        )
    pruned = 0 if config.activation is None else prune_inputs(mg, config, config.activation)
    return {**info, "activations": pruned}
