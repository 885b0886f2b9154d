"""Lets linear layers apply the activations that follow them."""

from __future__ import annotations

from typing import Any

from chop.fusion.linear_activation import fuse_linear_activations
from chop.ir.graph import MaseGraph
from chop.passes.base import NoConfig, graph_pass


@graph_pass(config=NoConfig, requires=("add_common_metadata_analysis_pass",))
def fuse_linear_activation_transform_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Replaces a linear layer and the activation that alone reads it by one module.

    Where no gradients are asked for, on a CPU, the activation is applied before the product leaves
    the registers, by oneDNN; small layers and training compute what they did. Values differ by the
    order of sums. Paths and `state_dict` keys stay. Layers that are quantized, shared or have hooks
    are left as they are. Quantize first: a fused layer is not quantized any more.

    Returns:
        fused: list of the paths of the layers that were fused.
        skipped: reason by the path of a layer.
    """
    fused, skipped = fuse_linear_activations(mg)
    return {"fused": fused, "skipped": skipped}
