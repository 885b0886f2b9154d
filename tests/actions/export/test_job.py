"""The job that writes a graph for other engines."""

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes, runs
from chop.actions.export.job import export
from chop.actions.export.model import load_graph
from chop.actions.export.proof import MOST_DYNAMIC, largest_difference
from chop.actions.export.settings import ExportConfig
from chop.base.files import atomic_file
from chop.cli.export import EXPORT
from chop.cli.names import with_lists
from chop.errors import ChopError, ConfigError, GraphError, UnavailableError, VerificationError
from chop.export import pt2
from chop.export.targets import REFUSED, TARGETS, target
from tests.export.decoders import captured, decoder, quantized
from tests.export.gguf import gguf_bytes

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "export.md"


@pytest.fixture
def run_folder(tmp_path):
    """As `chop compress` leaves it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 5)).eval()
    mg = MaseGraph(net, dummy_in={"input": torch.randn(4, 32)})
    rule = {"config": {"weight": {"name": "scale_integer", "width": 8}}}
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": rule})
    packed, _ = passes.pack_transform_pass(mg, {"silent": True})
    (tmp_path / "run").mkdir()
    packed.export(tmp_path / "run" / "model")
    return tmp_path / "run"


@pytest.fixture
def float_folder(tmp_path):
    decoder("Llama").save_pretrained(tmp_path / "float")
    return tmp_path / "float"


def test_a_run_becomes_a_file_that_its_engine_reads(run_folder, tmp_path):
    pytest.importorskip("onnxruntime", reason="onnxruntime reads the file")
    how = {"out": tmp_path / "out", "seconds": 0.02, "batch_sizes": (1, 3)}
    (row,) = export(ExportConfig(str(run_folder), ("onnx",), **how))
    assert (row.target, row.path) == ("onnx", str(tmp_path / "out" / "model.onnx"))
    assert row.size_bytes == (tmp_path / "out" / "model.onnx").stat().st_size
    assert row.difference < 1e-5
    assert (str(row.weights), row.rows) == ("2 of 2", None)
    assert [(timed.engine, timed.batch) for timed in row.times] == [("onnx", 1), ("onnx", 3)]
    assert row.times_as_fast is row.times[0].times_as_chop is not None
    table = (tmp_path / "out" / "table.md").read_text()
    assert "| onnx | model.onnx |" in table and "float: the graph with decoded weights" in table
    manifest = runs.read_manifest(tmp_path / "out")
    assert (manifest.kind, manifest.state) == ("export", "finished")
    files = {"model.onnx", "table.md", "times-batch-1.svg", "times-batch-3.json"}
    assert {artifact.path for artifact in manifest.artifacts} >= files
    assert manifest.rows[0]["weights"]["equal"] == 2 and len(manifest.rows[0]["times"]) == 2


@pytest.mark.long
def test_weights_of_a_python_file_are_said_to_be_from_its_code(tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime", reason="onnxruntime reads the file")
    monkeypatch.chdir(tmp_path)
    code = "from torch import nn\n\n\ndef net():\n    return nn.Sequential(nn.Linear(8, 4))\n"
    (tmp_path / "net.py").write_text(code)
    export(ExportConfig("net.py:net", ("onnx",), format="8.auto", seconds=0.01, batch_sizes=(1,)))
    shown = " ".join(capsys.readouterr().out.split())
    assert "'net.py:net' has the weights from its code, which are random unless" in shown


@pytest.mark.long
def test_float_folders_are_quantized_and_read_back_without_a_difference(float_folder, tmp_path):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors reads the folder")
    how = {"format": "group_integer:width=4", "out": tmp_path / "out", "seconds": 0.0}
    (row,) = export(ExportConfig(str(float_folder), ("compressed-tensors",), **how))
    assert (row.difference, row.times_as_fast, str(row.weights)) == (
        0.0,
        None,
        "9 of 9",
    )
    assert (tmp_path / "out" / "compressed-tensors" / "config.json").exists()


@pytest.mark.long
def test_inputs_are_rounded_where_they_have_a_format(float_folder, tmp_path):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors reads the folder")
    formats = {"format": "fp8:granularity=channel", "inputs": "fp8:granularity=row"}
    how = {"out": tmp_path / "out", "seconds": 0.0}
    (row,) = export(ExportConfig(str(float_folder), ("compressed-tensors",), **formats, **how))
    assert row.difference < 1e-5
    config = json.loads((tmp_path / "out" / "compressed-tensors" / "config.json").read_text())
    (group,) = config["quantization_config"]["config_groups"].values()
    assert group["format"] == "float-quantized"
    assert group["input_activations"]["strategy"] == "token"


@pytest.mark.long
def test_folders_that_chop_wrote_keep_their_codes(tmp_path):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors reads the folder")
    mg = quantized(captured("Qwen2"), {"linear": "mxint:width=4"})
    packed, _ = passes.pack_transform_pass(mg, {"silent": True})
    packed.save_pretrained(tmp_path / "ours")
    how = {"out": tmp_path / "out", "seconds": 0.0}
    (row,) = export(ExportConfig(str(tmp_path / "ours"), ("compressed-tensors",), **how))
    assert row.difference == 0.0


@pytest.mark.long
def test_float_models_need_a_format_and_others_have_one(float_folder, run_folder, tmp_path):
    how = {"out": tmp_path / "out", "seconds": 0.0}
    with pytest.raises(ConfigError, match="has float weights: pass --format"):
        export(ExportConfig(str(float_folder), ("onnx",), **how))
    with pytest.raises(ConfigError, match="is quantized already"):
        export(ExportConfig(str(run_folder), ("onnx",), format="mxint", **how))


@pytest.mark.long
def test_a_file_without_a_tokenizer_is_told(tmp_path):
    pytest.importorskip("gguf", reason="gguf names the types of tensors")
    pytest.importorskip("compressed_tensors", reason="compressed-tensors reads the folder")
    path, to = tmp_path / "model.gguf", ("compressed-tensors",)
    path.write_bytes(gguf_bytes.llama().content())
    export(ExportConfig(str(path), to, out=tmp_path / "out", seconds=0.0))
    table = (tmp_path / "out" / "table.md").read_text()
    assert f"No tokenizer was written: transformers found no tokenizer in '{path}'" in table


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"to": ()}, "expected one or more of onnx, openvino"),
        ({"to": ("onx",)}, "unknown target 'onx': did you mean 'onnx'"),
        ({"to": ("model.onnx",)}, "'model.onnx' names a file: pass the target 'onnx', and --out"),
        ({"to": ("awq",)}, "no target 'awq': .* use gptq or compressed-tensors"),
        ({"to": ("onnx", "executorch")}, "no target 'executorch': .* torchao 0.18.*; use pt2"),
        ({"to": ("pt2",), "format": "mxnit"}, "mxnit"),
        ({"to": ("pt2",), "inputs": "fp8"}, "inputs: expected --format for the weights"),
        ({"to": ("pt2",), "format": "fp8", "inputs": "8.auto"}, "'8.auto' needs calibration"),
        ({"to": ("pt2",), "batch_sizes": ()}, "batch_sizes: expected at least one"),
        ({"to": ("pt2", "pt2")}, "to: 'pt2' is given twice"),
    ],
)
def test_wrong_settings(settings, reason):
    with pytest.raises(ConfigError, match=reason):
        ExportConfig("mlp", **settings)


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"needs openvino and onnx and onnx.*: pip .*openv"):
        ExportConfig("mlp", ("openvino",))


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_is_complete(name):
    found = target(name)
    assert found.name == name
    assert found.engines and found.library
    page, told = (" ".join(text.split()) for text in (PAGE.read_text(), with_lists(EXPORT.help)))
    assert f"[bold]{name}[/] ({found.engines}): {found.takes}" in told
    assert f"| `{name}` | {found.engines} |" in page
    assert found.suffix == "" or found.suffix.startswith(".")


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_target_names_one(name):
    assert name not in TARGETS
    with pytest.raises(ConfigError, match=rf"^to: no target '{re.escape(name)}': .*\.$") as refusal:
        target(name)
    assert any(re.search(rf"\b{each}\b", str(refusal.value)) for each in TARGETS)


def test_targets_share_a_folder():
    places = [
        (kind.stem if kind.suffix else kind.name, kind.suffix) for kind in map(target, TARGETS)
    ]
    assert len({*places}) == len(TARGETS)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["run", "run/model", "run/model.mz", "run/model.pt", "."])
def test_runs_and_checkpoints_by_any_of_their_names(name, run_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(run_folder if name == "." else tmp_path)
    found = load_graph(ExportConfig(name, ("pt2",), seconds=0.0)).mg
    assert found.diff(MaseGraph.from_checkpoint(run_folder / "model")) == []


def test_every_target_is_asked_before_anything_is_written(run_folder, tmp_path):
    pytest.importorskip("onnxruntime", reason="onnxruntime reads the file")
    pytest.importorskip("gguf", reason="gguf refuses the model")
    config = ExportConfig(str(run_folder), ("onnx", "gguf"), out=tmp_path / "out", seconds=0.0)
    with pytest.raises(ChopError, match=r"^gguf: (?!gguf).*\nNo files were written\."):
        export(config)
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["manifest.json"]


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"y": torch.ones(2)}, r"onnx: expected the output 'x', got \['y'\]"),
        ({"x": torch.tensor([1.0, 3.0])}, r"outputs differ by 2 \(largest output 1\), more"),
        ({"x": torch.tensor([1.0, float("nan")])}, "outputs differ by inf"),
        ({"x": torch.ones(1)}, "shapes"),
    ],
)
def test_another_model_is_no_result(found, reason):
    with pytest.raises(ChopError, match=reason):
        largest_difference(found, {"x": torch.ones(2)}, "onnx")


def test_layers_that_find_scales_of_inputs_may_differ_more():
    found, expected = {"a": torch.tensor([1.2, 4.0])}, {"a": torch.tensor([1.2, 3.0])}
    with pytest.raises(VerificationError, match="more than rounding explains"):
        largest_difference(found, expected, "x")
    assert largest_difference(found, expected, "x", MOST_DYNAMIC) == 1.0


def test_outputs_that_files_rename_are_found_and_nan_beside_nan_is_equal():
    x = torch.tensor([1.0, float("nan")])
    assert largest_difference({"x.out": x}, {"x": x.clone()}, "onnx") == 0.0


@pytest.mark.long
def test_what_a_user_would_not_expect_is_told(run_folder, tmp_path, capsys):
    pytest.importorskip("onnxruntime", reason="onnxruntime reads the file")
    mg = MaseGraph.from_checkpoint(run_folder / "model")
    unpacked, _ = passes.pack_transform_pass(mg, {"unpack": True, "silent": True})
    rule = {"config": {"weight": {"name": "mxfp", "width": 8, "block_size": 8}}}
    other, _ = passes.quantize_transform_pass(unpacked, {"by": "type", "linear": rule})
    other.export(tmp_path / "mx")
    config = ExportConfig(str(tmp_path / "mx"), ("onnx",), out=tmp_path / "out", seconds=0.0)
    (row,) = export(config)
    assert row.notes == ("2 operands are stored as rounded floats: ONNX lacks their formats",)
    assert "onnx: 2 operands are stored as rounded" in " ".join(capsys.readouterr().out.split())
    inputs = {"config": {"data_in": {"name": "mxint", "width": 4, "block_size": 8}}}
    rounding, _ = passes.quantize_transform_pass(unpacked, {"by": "type", "linear": inputs})
    rounding.export(tmp_path / "inputs")
    (row,) = export(replace(config, model=str(tmp_path / "inputs"), out=tmp_path / "again"))
    label = "mxint(block_size=8, width=4)"
    named = f"0.data_in ({label}), 2.data_in ({label})"
    assert row.notes == (f"{named} are not rounded: ONNX lacks their formats",)
    printed = " ".join(capsys.readouterr().out.split())
    assert row.difference > 1e-3 and "inputs are not rounded: ONNX lacks their formats." in printed
    assert "next to a tie" not in printed


@pytest.mark.long
def test_the_pass_adds_a_suffix_and_counts_its_own_files(run_folder, tmp_path):
    pytest.importorskip("onnxruntime", reason="onnxruntime reads the file")
    mg = MaseGraph.from_checkpoint(run_folder / "model")
    _, info = passes.export_interface_pass(mg, {"to": "onnx", "path": tmp_path / "model.v2"})
    assert info["path"] == tmp_path / "model.v2.onnx"
    assert info["size_bytes"] == info["path"].stat().st_size and info["notes"] == []
    folder = tmp_path / "vllm"
    folder.mkdir()
    (folder / "mine.bin").write_bytes(bytes(10_000_000))
    llama = quantized(captured("Llama"), {"linear": "mxfp:width=4", "embedding": "mxint:width=8"})
    _, info = passes.export_interface_pass(llama, {"to": "compressed-tensors", "path": folder})
    assert info["size_bytes"] < 1_000_000
    assert [note.split(":")[0] for note in info["notes"]] == [
        "embeddings are written as floats",
        "the library decodes these formats to bfloat16, but the model is in torch.float32",
    ]


@pytest.mark.long
def test_models_in_bfloat16_become_float32_in_onnx(tmp_path):
    pytest.importorskip("onnxruntime", reason="onnxruntime reads the file")
    net = nn.Sequential(nn.Linear(32, 5)).bfloat16().eval()
    mg = MaseGraph(net, dummy_in={"input": torch.randn(4, 32).bfloat16()})
    rule = {"config": {"weight": {"name": "scale_integer", "width": 8}}}
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": rule})
    _, info = passes.export_interface_pass(mg, {"to": "onnx", "path": tmp_path / "model"})
    assert info["notes"] == ["the model was converted to float32"]
    assert mg.model.state_dict()["0.weight"].dtype is torch.bfloat16


def test_openvino_reads_its_own_files(run_folder, tmp_path):
    pytest.importorskip("openvino", reason="OpenVINO reads its own files")
    (row,) = export(ExportConfig(str(run_folder), ("openvino",), out=tmp_path, seconds=0.0))
    assert row.difference < 1e-5
    files = {file.name: file.stat().st_size for file in tmp_path.glob("openvino_model.*")}
    assert set(files) == {"openvino_model.xml", "openvino_model.bin"}
    assert row.size_bytes == sum(files.values())


@pytest.mark.long
def test_a_target_that_fails_leaves_nothing_half_written(run_folder, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="onnxruntime reads the file")

    def fail(mg, path, tokenizer):
        with atomic_file(path) as temporary:
            temporary.write_bytes(b"half")
            raise GraphError("pt2: torch cannot compile this graph.")

    monkeypatch.setattr(pt2, "TARGET", replace(pt2.TARGET, write=fail))
    config = ExportConfig(str(run_folder), ("onnx", "pt2"), out=tmp_path / "out", seconds=0.0)
    with pytest.raises(GraphError, match=r"compile this graph\.\nThe files of onnx are complete\."):
        export(config)
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"manifest.json", "model.onnx"}
    assert runs.read_manifest(tmp_path / "out").state == "failed"
