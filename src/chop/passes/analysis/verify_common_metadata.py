"""Verification that the metadata matches the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx

from chop.errors import GraphError
from chop.ir.annotate import common_metadata
from chop.ir.graph import MaseGraph, node_metadata
from chop.ir.metadata import CommonMetadata, TensorInfo
from chop.ir.propagate import propagate, recorded_inputs
from chop.passes.base import graph_pass

CHECKED = ("shape", "torch_dtype", "type", "precision")


@dataclass(frozen=True)
class VerifyCommonConfig:
    """Settings of `verify_common_metadata_analysis_pass`.

    Attributes:
        dummy_in: example inputs of the metadata; default, inputs with the recorded shapes and
            dtypes.
    """

    dummy_in: Mapping[str, Any] | None = None


@graph_pass(config=VerifyCommonConfig, requires=("add_common_metadata_analysis_pass",))
def verify_common_metadata_analysis_pass(
    mg: MaseGraph, config: VerifyCommonConfig
) -> dict[str, Any]:
    """Runs the graph on fake tensors and compares the result with `common` of every node.

    It compares the operator and its type, and the shape, dtype, type and precision of every tensor
    among the arguments and results.

    Returns:
        checked: number of nodes.

    Raises:
        GraphError: if metadata differs; the message has the node, the recorded and the actual
            value.
    """
    results: dict[fx.Node, Any] = {}

    def compare(node: fx.Node, result: Any) -> None:
        results[node] = result
        _compare(node, node_metadata(node).common, common_metadata(mg, node, results))

    inputs = recorded_inputs(mg.model) if config.dummy_in is None else config.dummy_in
    propagate(mg.model, inputs, compare)
    return {"checked": len(results)}


def _compare(node: fx.Node, recorded: CommonMetadata, true: CommonMetadata) -> None:
    for what in ("mase_op", "mase_type"):
        _expect(node, what, recorded[what], true[what])
    for side in ("args", "results"):
        tensors = {name: x for name, x in true[side].items() if isinstance(x, TensorInfo)}
        _expect(node, side, _tensor_names(recorded[side]), sorted(tensors))
        for name, info in tensors.items():
            for what in CHECKED:
                _expect(node, f"{side}.{name}.{what}", recorded[side][name][what], info[what])


def _tensor_names(entries: Mapping[str, Any]) -> list[str]:
    return sorted(name for name, info in entries.items() if isinstance(info, TensorInfo))


def _expect(node: fx.Node, what: str, recorded: Any, true: Any) -> None:
    if recorded != true:
        raise GraphError(
            f"node '{node.name}': its metadata has {what} {recorded!r}, and it is {true!r}; run "
            "add_common_metadata_analysis_pass again."
        )
