"""Merging of LoRA adapters into the adapted weights."""

from __future__ import annotations

from typing import Any

from chop.errors import GraphError
from chop.ir.graph import MaseGraph
from chop.lora.layers import attach
from chop.nn.lora import list_adapters, unfreeze
from chop.passes.base import NoConfig, graph_pass


@graph_pass(config=NoConfig)
def fuse_lora_weights_transform_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Replaces each adapted layer by a plain one with the weight W + scaling B A.

    In evaluation mode a float graph computes the same as before, and a pruned one keeps its masks.
    A quantized layer becomes a `QuantLinear` that rounds the updated weight, which changes outputs
    by that rounding; a derived fraction width stays the same. Parameters frozen by the insertion
    become trainable again.

    Returns:
        fused: number of layers.

    Raises:
        GraphError: if the graph has no adapter.
    """
    layers = list_adapters(mg.model)
    if not layers:
        raise GraphError(
            "fuse_lora_weights_transform_pass: the graph has no adapter; "
            "insert_lora_adapter_transform_pass(mg, {...}) adds them."
        )
    attach(mg, {path: layer.fused() for path, layer in layers.items()})
    unfreeze(mg.model)
    return {"fused": len(layers)}
