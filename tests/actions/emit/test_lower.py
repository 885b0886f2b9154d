"""The job that lowers a model to integers."""

import json

import pytest
import torch
from safetensors.torch import load_file

from chop import MaseGraph, runs
from chop.actions.emit.lower import lower
from chop.actions.emit.lower_settings import LowerConfig
from chop.errors import ConfigError
from chop.nn.integer import Decode, Encode
from tests.actions.emit.circuits import workload


@pytest.fixture(name="workload")
def _workload():
    return workload(test_rows=40)


def test_it_writes_a_graph_and_its_golden_values(workload, tmp_path):
    result = lower(LowerConfig(out=tmp_path, rows=30, force=True), workload)
    assert [row["kind"] for row in result["operators"]] == ["linear", "relu", "linear"]
    assert all(row["different"] == 0 for row in result["operators"])
    assert result["accuracy"]["integer"] == result["accuracy"]["quantized"]
    low, high = result["accuracy_interval_95"]["integer"]
    assert low < result["accuracy"]["integer"] < high
    right = round(30 * result["accuracy"]["integer"])
    assert f"integer {right}. These are too few rows" in (tmp_path / "table.md").read_text()
    assert (result["rows"], result["format"]) == (30, "integer 8.auto")
    golden = load_file(tmp_path / "golden.safetensors")
    mg = MaseGraph.from_checkpoint(tmp_path / "model")
    ends = {type(mg.get_module(node)): node for node in mg.nodes}
    (given,) = (name for name in golden if name.startswith("inputs."))
    assert golden[given].shape == (30, 6)
    assert golden[f"sent.{ends[Encode].name}"].dtype == torch.int64
    source = ends[Decode].args[0].name
    decoded = golden[f"outputs.{ends[Decode].name}"]
    assert torch.equal(mg.modules[ends[Decode].target](golden[f"received.{source}"]), decoded)
    assert torch.equal(mg.model(golden[given]), decoded)
    assert "| first | linear |" in (tmp_path / "table.md").read_text()
    assert json.loads((tmp_path / "result.json").read_text())["operators"] == result["operators"]
    manifest = runs.read_manifest(tmp_path)
    assert (manifest.kind, manifest.state) == ("lower", "finished")
    assert "golden.safetensors" in {artifact.path for artifact in manifest.artifacts}


def test_formats_without_integers_are_refused(workload, tmp_path):
    config = LowerConfig(
        out=tmp_path, formats="minifloat_ieee:width=8:exponent_width=4", force=True
    )
    with pytest.raises(ConfigError, match=r"no integer form of first.data_in \(minifloat"):
        lower(config, workload)
    assert not (tmp_path / "model.pt").exists()


def test_scales_that_follow_each_batch_are_fixed_first(workload, tmp_path):
    result = lower(LowerConfig(formats="scale_integer:width=8", out=tmp_path, force=True), workload)
    assert result["accuracy"]["integer"] == pytest.approx(result["accuracy"]["quantized"], abs=0.02)


def test_steps_of_a_model_that_predicts_no_tokens_are_refused(workload, tmp_path):
    config = LowerConfig(out=tmp_path, decode=True, force=True)
    with pytest.raises(ConfigError, match="decode: .* has the task 'classification', expected a"):
        lower(config, workload)
