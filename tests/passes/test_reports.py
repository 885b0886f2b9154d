"""Reports print what they return."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.passes.analysis.add_common_metadata import add_common_metadata_analysis_pass
from chop.passes.analysis.init_metadata import init_metadata_analysis_pass
from chop.passes.analysis.report_graph import report_graph_analysis_pass
from chop.passes.analysis.report_node_meta_param import report_node_meta_param_analysis_pass
from chop.passes.analysis.report_nodes import (
    report_node_shape_analysis_pass,
    report_node_type_analysis_pass,
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 2)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.second(torch.relu(self.first(x))) + 1).contiguous()


@cache
def captured() -> MaseGraph:
    return MaseGraph(Net(), dummy_in={"x": torch.randn(3, 4)})


@pytest.fixture
def mg() -> MaseGraph:
    graph, _ = init_metadata_analysis_pass(captured().copy())
    return add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": torch.randn(3, 4)}})[0]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def row(info: dict[str, Any], node: str) -> dict[str, Any]:
    (found,) = [row for row in info["rows"] if row["node"] == node]
    return found


def test_the_graph_is_printed_with_counts(mg: MaseGraph, capsys: pytest.CaptureFixture) -> None:
    same, info = report_graph_analysis_pass(mg, {"file_name": None})
    printed = capsys.readouterr().out
    assert same is mg
    assert info["nodes"] == len(mg.nodes) == sum(info["ops"].values())
    assert info["ops"]["call_module"] == 3 and info["ops"]["placeholder"] == 1
    assert info["operators"] == {
        "linear": 2, "relu": 1, "add": 1, "batch_norm1d": 1, "contiguous": 1,
    }  # fmt: skip
    assert "%first" in printed and "call_module: 3" in printed and "linear: 2" in printed


def test_the_graph_is_written_and_not_printed(
    mg: MaseGraph, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "new" / "graph.txt"
    _, info = report_graph_analysis_pass(mg, {"file_name": str(path)})
    assert path.read_text() == info["text"] and "%first" in info["text"]
    assert capsys.readouterr().out == ""


def test_node_types(mg: MaseGraph, capsys: pytest.CaptureFixture) -> None:
    _, info = report_node_type_analysis_pass(mg, pass_args={})
    assert [row["node"] for row in info["rows"]] == [node.name for node in mg.nodes]
    assert row(info, "first") == {
        "node": "first", "op": "call_module", "operator": "linear",
        "mase_type": "module_related_func", "module": "Linear", "target": "first",
    }  # fmt: skip
    assert row(info, "norm")["mase_type"] == "module"
    assert row(info, "add")["mase_type"] == "builtin_func" and row(info, "add")["module"] == ""
    printed = capsys.readouterr().out
    assert "module_related_func" in printed and "BatchNorm1d" in printed


def test_node_shapes(mg: MaseGraph, capsys: pytest.CaptureFixture) -> None:
    _, info = report_node_shape_analysis_pass(mg)
    first = row(info, "first")
    assert first["inputs"]["data_in_0"] == ((3, 4), "float32")
    assert first["inputs"]["weight"] == ((8, 4), "float32")
    assert first["outputs"] == {"data_out_0": ((3, 8), "float32")}
    assert "data_out_0 (3, 8) float32" in capsys.readouterr().out


def test_node_metadata(mg: MaseGraph, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    mg.node("first").meta["mase"]["software"]["sparsity"] = 0.5
    path = tmp_path / "new" / "table.txt"
    settings = {"which": ("common", "software"), "save_path": str(path)}
    _, info = report_node_meta_param_analysis_pass(mg, settings)
    first = row(info, "first")
    assert first["common"]["results"]["data_out_0"]["shape"] == (3, 8)
    assert first["software"] == {"sparsity": 0.5} and "hardware" not in first
    assert "sparsity: 0.5" in capsys.readouterr().out
    assert "sparsity: 0.5" in path.read_text()
    _, everything = report_node_meta_param_analysis_pass(mg)
    assert row(everything, "first")["hardware"] == {}
    json.dumps(everything["rows"], default=str)
    with pytest.raises(ConfigError, match="which"):
        report_node_meta_param_analysis_pass(mg, {"which": ("sofware",)})


def test_values_are_described_and_not_printed(capsys: pytest.CaptureFixture) -> None:
    mg, _ = init_metadata_analysis_pass(captured().copy())
    settings = {"dummy_in": {"x": torch.randn(3, 4)}, "add_value": True}
    mg, _ = add_common_metadata_analysis_pass(mg, settings)
    _, info = report_node_meta_param_analysis_pass(mg)
    value = row(info, "first")["common"]["results"]["data_out_0"]["value"]
    assert value == "tensor (3, 8) torch.float32"
