"""Natural sparsity: shares of zeros before pruning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chop.ir.batches import select_inputs
from chop.ir.graph import MaseGraph, node_metadata
from chop.passes.base import graph_pass
from chop.pruning.sparsity import layer_zeros, total

WHERE = "add_natural_sparsity_metadata_analysis_pass"


@dataclass(frozen=True)
class NaturalSparsityConfig:
    """Settings of `add_natural_sparsity_metadata_analysis_pass`.

    Attributes:
        dummy_in: inputs of the model by name.
        add_meta: also stores the shares in the metadata, `software.args[name]["natural_sparsity"]`.
    """

    dummy_in: Mapping[str, Any]
    add_meta: bool = True


@graph_pass(config=NaturalSparsityConfig, requires=("add_software_metadata_analysis_pass",))
def add_natural_sparsity_metadata_analysis_pass(
    mg: MaseGraph, config: NaturalSparsityConfig
) -> dict[str, Any]:
    """Measures the share of exact zeros in weights and inputs of linear and convolution layers.

    A dense tensor has the share 0.0. (MASE's pass returns the share of non-zeros.)

    Returns:
        PATH_weight: (elements, share of zeros) of the weight of the layer at `PATH`.
        PATH_activation: (elements, share of zeros) of its input.
        avg_weight: share of zeros in all the weights.
        avg_activation: share of zeros in all the inputs.

    Raises:
        ConfigError: if `dummy_in` is missing or not a mapping.
    """
    zeros = layer_zeros(mg, select_inputs(mg, [config.dummy_in], f"{WHERE}.dummy_in"))
    for layer, (weight, data_in) in zeros.items() if config.add_meta else ():
        for node in layer.nodes:
            entries = node_metadata(node).software["args"]
            entries.setdefault("weight", {})["natural_sparsity"] = weight.share
            entries.setdefault("data_in_0", {})["natural_sparsity"] = data_in.share
    weights = {f"{layer.path}_weight": n for layer, (n, _) in zeros.items()}
    inputs = {f"{layer.path}_activation": n for layer, (_, n) in zeros.items()}
    return {
        **{name: (count.elements, count.share) for name, count in (weights | inputs).items()},
        "avg_weight": total(weights.values()).share,
        "avg_activation": total(inputs.values()).share,
    }
