"""Notes how many zeros there are before anything is pruned."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from chop.ir.batches import observe_nodes, select_inputs
from chop.ir.graph import MaseGraph, metadata_of
from chop.passes.base import graph_pass
from chop.pruning.layers import prunable_layers

WHERE = "add_natural_sparsity_metadata_analysis_pass"


@dataclass(frozen=True)
class NaturalSparsityConfig:
    """Settings of `add_natural_sparsity_metadata_analysis_pass`.

    Attributes:
        dummy_in: inputs of the model by name.
        add_meta: also notes the shares in the metadata, `software.args[name]["natural_sparsity"]`.
    """

    dummy_in: Mapping[str, Any]
    add_meta: bool = True


@graph_pass(config=NaturalSparsityConfig, requires=("add_software_metadata_analysis_pass",))
def add_natural_sparsity_metadata_analysis_pass(
    mg: MaseGraph, config: NaturalSparsityConfig
) -> dict[str, Any]:
    """The share of exact zeros in the weights and inputs of linear and convolution layers.

    A share is that of zeros: 0.0 for a dense tensor. (MASE's pass gives the share of the others.)

    Returns:
        PATH_weight: (elements, share of zeros) of the weight of the layer at `PATH`.
        PATH_activation: (elements, share of zeros) of its input.
        avg_weight: share of zeros in all the weights.
        avg_activation: share of zeros in all the inputs.

    Raises:
        ConfigError: `dummy_in` is missing or no mapping.
    """
    found = [layer for layer in prunable_layers(mg) if layer.row.is_product]
    layers = {node: layer for layer in found for node in layer.nodes}
    weights = {layer.path: _zeros(layer.module.weight) for layer in found}  # type: ignore[arg-type]
    inputs: dict[str, tuple[int, int]] = {}

    def count(node: fx.Node, values: Mapping[fx.Node, Any], result: Any) -> None:
        if node in layers:
            path, (zeros, elements) = layers[node].path, _zeros(values[node.all_input_nodes[0]])
            before = inputs.get(path, (0, 0))
            inputs[path] = before[0] + zeros, before[1] + elements

    observe_nodes(mg, select_inputs(mg, [config.dummy_in], f"{WHERE}.dummy_in"), count)
    for node, layer in layers.items() if config.add_meta else ():
        entries = metadata_of(node).software["args"]
        for name, counts in (("weight", weights[layer.path]), ("data_in_0", inputs[layer.path])):
            entries.setdefault(name, {})["natural_sparsity"] = _share(counts)
    return {
        **{f"{path}_weight": (counts[1], _share(counts)) for path, counts in weights.items()},
        **{f"{path}_activation": (counts[1], _share(counts)) for path, counts in inputs.items()},
        "avg_weight": _share(_sum(weights.values())),
        "avg_activation": _share(_sum(inputs.values())),
    }


def _zeros(x: Tensor) -> tuple[int, int]:
    """(zeros, elements)."""
    return int((x.detach() == 0).sum()), x.numel()


def _sum(counts: Collection[tuple[int, int]]) -> tuple[int, int]:
    zeros, elements = zip(*counts, strict=True) if counts else ((), ())
    return sum(zeros), sum(elements)


def _share(counts: tuple[int, int]) -> float:
    zeros, elements = counts
    return zeros / max(elements, 1)
