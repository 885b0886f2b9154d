"""Pass `replace_activations_transform_pass`."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from chop import MaseGraph
from chop.errors import ConfigError
from chop.passes import graph_pass

CHEAP = {"relu": nn.ReLU, "hardswish": nn.Hardswish}


@dataclass(frozen=True)
class ReplaceActivationsConfig:
    """Settings of `replace_activations_transform_pass`.

    Attributes:
        source: operator to replace, a name of the operator table.
        target: "relu" or "hardswish".
    """

    source: str = "gelu"
    target: str = "relu"

    def __post_init__(self) -> None:
        if self.target not in CHEAP:
            raise ConfigError(f"target: expected one of {sorted(CHEAP)}, got '{self.target}'.")


@graph_pass(config=ReplaceActivationsConfig, requires=("add_common_metadata_analysis_pass",))
def replace_activations_transform_pass(
    mg: MaseGraph, config: ReplaceActivationsConfig
) -> dict[str, Any]:
    """Replaces each activation of one kind by a cheaper one.

    Returns:
        replaced: number of nodes.
    """
    chosen = [node for node in mg.nodes if mg.operator(node).name == config.source]
    for node in chosen:
        mg.replace(node, CHEAP[config.target]())
        row, common = mg.operator(node), node.meta["mase"].common
        common.mase_op, common.mase_type = row.name, row.mase_type
    return {"replaced": len(chosen)}
