"""Shared scales: one scale of the tensor for weights that engines join into one matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from chop.export.joined_layers import joined_layers
from chop.formats import FP8, NVFP4, NumberFormat
from chop.formats.static import static_format
from chop.ir.annotate import record_formats
from chop.ir.graph import MaseGraph
from chop.nn.quantized import QuantizedOperator
from chop.passes.base import NoConfig, graph_pass


@graph_pass(config=NoConfig, requires=("quantize_transform_pass",))
def share_scales_transform_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Gives weights that engines join one static scale of the tensor, in `nvfp4` and `fp8`.

    vLLM, SGLang and TensorRT-LLM run q_proj, k_proj and v_proj as one matrix, and gate_proj and
    up_proj as another. With different scales of the tensor, they multiply `nvfp4` by the largest
    one, and round `fp8` again. The shared scale fits the largest magnitude of all these weights.
    Layers with different formats, learned scales, or `fp8` with a scale per channel or block are
    left as they are.

    Returns:
        shared: number of layers with a shared scale.
    """
    layers: dict[str, QuantizedOperator] = {
        path: module
        for path, module in mg.model.named_modules()
        if isinstance(module, QuantizedOperator) and isinstance(module, nn.Linear)
        if not module.spec.learns("weight")
    }
    changed: list[QuantizedOperator] = []
    for group in joined_layers(layers):
        members = [layers[path] for path in group]
        shared = _shared_format(members)
        if shared is not None:
            changed += members
            for member in members:
                member.take_spec(member.spec.with_quantizers(weight=shared))
    for node in mg.nodes:
        called = mg.get_module(node)
        if any(called is member for member in changed):
            assert isinstance(called, QuantizedOperator)
            record_formats(node, called)
    return {"shared": len(changed)}


def _shared_format(members: Sequence[QuantizedOperator]) -> NumberFormat | None:
    """Returns the static format of joined weights, or None if their formats have no such scale."""
    first = members[0].spec.weight
    if not isinstance(first, NVFP4 | FP8) or any(x.spec.weight != first for x in members):
        return None
    return static_format(first, torch.cat([x.effective("weight").reshape(-1) for x in members]))
