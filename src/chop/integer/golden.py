"""Golden values: what an integer graph computes at its ends, for simulations to reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from chop.errors import ConfigError
from chop.ir.batches import observe_nodes
from chop.ir.graph import MaseGraph
from chop.nn.integer import Decode, Encode, EncodeBlocks

Golden = dict[str, Tensor]
GOLDEN = "golden.safetensors"
"""File of golden values."""


def golden_values(mg: MaseGraph, batch: Mapping[str, Any]) -> Golden:
    """Values at the ends of an integer graph.

    Args:
        mg: the graph.
        batch: inputs by name; others are ignored.
    Raises:
        ConfigError: an input has NaN, which has no code.
    Returns: `inputs.NAME`, `outputs.NODE` of real numbers, and as int64 the codes that the host
        sends and receives, `sent.NODE` and `received.NODE`; indices and masks are sent as they are.
    """
    names = {str(node.target) for node in mg.nodes if node.op == "placeholder"}
    inputs = {name: x.cpu() for name, x in batch.items() if name in names}
    for name, x in inputs.items():
        if x.is_floating_point() and bool(x.isnan().any()):
            raise ConfigError(
                f"input '{name}' has NaN, which no integer stands for: leave out such rows, or "
                "fill them."
            )
    found: Golden = {f"inputs.{name}": x for name, x in inputs.items()}

    def visit(node: fx.Node, values: Mapping[fx.Node, Any], result: Any) -> None:
        module = mg.get_module(node)
        is_index = node.op == "placeholder" and isinstance(result, Tensor)
        if isinstance(module, Encode | EncodeBlocks):
            found[f"sent.{node.name}"] = result
        elif is_index and not result.is_floating_point():
            found[f"sent.{node.name}"] = result.long()
        elif isinstance(module, Decode):
            (source,) = node.all_input_nodes
            found[f"received.{source.name}"] = values[source]
            found[f"outputs.{node.name}"] = result

    with torch.no_grad():
        observe_nodes(mg, [inputs], visit, follows_padding=False)
    return {name: x.contiguous().clone() for name, x in found.items()}
