"""Circuits and integer graphs of QONNX files."""

import pytest
import torch

from chop.actions.compress.job import compress
from chop.actions.compress.settings import CompressConfig
from chop.actions.emit.job import emit
from chop.actions.emit.lower import lower
from chop.actions.emit.lower_settings import LowerConfig
from chop.actions.emit.settings import EmitConfig
from chop.errors import ConfigError
from chop.export.qonnx.reader import read_module
from chop.models import load_model
from chop.workloads.workload import Workload
from tests.actions.emit.circuits import SETTINGS
from tests.export.qonnx_models import Model, tfc

pytest.importorskip("onnx", reason="onnx reads files of QONNX")


@pytest.fixture(name="path")
def _path(tmp_path):
    """Two layers with a batch norm in between; inputs are scaled before they are rounded."""
    model = Model(6)
    x = model.node("Sub", model.node("Mul", "global_in", model.constant(2.0)), model.random(6))
    x = model.quant(x, 0.25, 5)
    x = model.node("MatMul", x, model.bipolar(model.random(6, 8)))
    x = model.quant(model.norm(x, 8), 0.5, 2, narrow=1)
    model.node("MatMul", x, model.quant(model.random(8, 3), 0.5, 2, narrow=1))
    return model.save(tmp_path)


def test_without_data_inputs_are_random(path, tmp_path):
    result = lower(LowerConfig(model=str(path), out=tmp_path / "out", limit=20))
    assert (result["rows"], result["accuracy"]) == (20, {})
    assert result["format"] == "the formats of its file"
    assert all(row["different"] == 0 for row in result["operators"])
    kinds = [row["kind"] for row in result["operators"]]
    assert kinds == ["linear", "batch_norm1d", "linear"]  # the host scales the inputs
    (text,) = result["assumptions"]
    assert text.startswith("No data set was given: inputs are random")
    assert "20 rows" in (tmp_path / "out" / "table.md").read_text()


def test_accuracies_are_those_of_the_file(path, tmp_path):
    x, labels = torch.randn(60, 6), torch.arange(60) % 3
    workload = Workload.of(read_module(path), (x[:40], labels[:40]), (x[40:], labels[40:]))
    result = lower(LowerConfig(out=tmp_path / "out", force=True), workload)
    assert result["accuracy"].keys() == {"quantized", "integer"}
    assert result["accuracy"]["quantized"] == result["accuracy"]["integer"]


def test_other_formats_and_jobs_are_refused(path, tmp_path):
    name, out = str(path), tmp_path / "out"
    with pytest.raises(ConfigError, match=r"formats: '.*onnx' has its own number formats"):
        lower(LowerConfig(model=name, out=out, formats="4.auto"))
    with pytest.raises(ConfigError, match=r"train_epochs: '.*onnx' is quantized already"):
        lower(LowerConfig(model=name, out=out, train_epochs=1))
    with pytest.raises(ConfigError, match=r"model: '.*onnx' is an ONNX file, which only chop emit"):
        compress(CompressConfig(model=name, dataset="digits", out=out))
    with pytest.raises(ConfigError, match=r"pretrained: '.*onnx' has its weights in its graph"):
        load_model(name, pretrained=False)
    assert [*load_model(name).state_dict()] == [*read_module(path).state_dict()]


@pytest.mark.long
def test_circuits_equal_the_graph(path, tmp_path):
    settings = {**SETTINGS, "force": False}
    result = emit(EmitConfig(model=str(path), out=tmp_path / "out", **settings))
    assert {row["equal"] for row in result["verification"]} == {3 * 12, 3 * 2}
    assert result["pytorch"] == {"outputs": 36, "different": 0, "largest": 0.0, "operators": []}
    modules = {row["module"] for row in result["components"]}
    assert any("threshold" in module for module in modules)


@pytest.mark.long
def test_a_retrained_file_needs_only_other_words(tmp_path):
    paths = []
    for seed in (0, 1):
        (tmp_path / str(seed)).mkdir()
        paths.append(tfc(2, width=8, shape=(1, 4, 4), seed=seed).save(tmp_path / str(seed)))
    out, again = tmp_path / "out", tmp_path / "again"
    settings = {**SETTINGS, "force": False, "samples": 4, "limit": 20, "icarus_samples": 1}
    first = EmitConfig(model=str(paths[0]), out=out, weight_memory="loadable", **settings)
    emit(first)
    del settings["fold"]
    other = EmitConfig(
        model=str(paths[0]), out=again, start_from=out, weights_from=paths[1], **settings
    )
    assert emit(other)["pytorch"] == {
        "outputs": 40,
        "different": 0,
        "largest": 0.0,
        "operators": [],
    }
    for path in sorted((out / "rtl").iterdir()):
        assert path.read_bytes() == (again / "rtl" / path.name).read_bytes()
    words = [(folder / "weights/weights.bin").read_bytes() for folder in (out, again)]
    assert len(words[0]) == len(words[1]) and words[0] != words[1]
