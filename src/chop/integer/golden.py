"""Golden values: expected inputs and outputs of a circuit, computed by the integer graph."""

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
    """Computes the golden values of an integer graph.

    Args:
        mg: the graph.
        batch: inputs by name; extra entries are ignored.
    Raises:
        ConfigError: if an input has NaN, which has no code.
    Returns: real `inputs.NAME` and `outputs.NODE`, and the int64 codes `sent.NODE` and
        `received.NODE` that the host sends and receives. Indices and masks are sent unchanged.
    """
    names = {str(node.target) for node in mg.nodes if node.op == "placeholder"}
    inputs = {name: x.cpu() for name, x in batch.items() if name in names}
    for name, x in inputs.items():
        if x.is_floating_point() and bool(x.isnan().any()):
            raise ConfigError(
                f"input '{name}' has NaN, which no integer represents: remove such rows, or fill "
                "them."
            )
    golden: Golden = {f"inputs.{name}": x for name, x in inputs.items()}

    def visit(node: fx.Node, values: Mapping[fx.Node, Any], result: Any) -> None:
        module = mg.get_module(node)
        is_index = node.op == "placeholder" and isinstance(result, Tensor)
        if isinstance(module, Encode | EncodeBlocks):
            golden[f"sent.{node.name}"] = result
        elif is_index and not result.is_floating_point():
            golden[f"sent.{node.name}"] = result.long()
        elif isinstance(module, Decode):
            (source,) = node.all_input_nodes
            golden[f"received.{source.name}"] = values[source]
            golden[f"outputs.{node.name}"] = result

    with torch.no_grad():
        observe_nodes(mg, [inputs], visit, follows_padding=False)
    return {name: x.contiguous().clone() for name, x in golden.items()}
