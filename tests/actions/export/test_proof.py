"""Proof of exports: weights, test rows, and what rounding again costs."""

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from chop import MaseGraph, runs
from chop.actions.export.job import export
from chop.actions.export.model import Loaded, decoded, load_graph
from chop.actions.export.proof import (
    MOST_DYNAMIC,
    RowProof,
    check_unrounded,
    compare_weights,
    exact_graph,
    example_difference,
)
from chop.actions.export.report import check_changes
from chop.actions.export.settings import ExportConfig
from chop.actions.export.times import measure_times
from chop.errors import CheckpointError, ConfigError, VerificationError
from chop.export.nearest import Change, describe
from chop.export.packed_model import packed_layers
from chop.export.targets import target
from chop.formats import QuantSpec, parse_format_string
from chop.pipelines.packed_weights import pack_weights
from chop.train.tasks import IGNORED, TASKS
from tests.export.decoders import captured

TALL, SQUARE = "0", "2"
VALUES = "model.layers.0.self_attn.v_proj"


@pytest.fixture(scope="module")
def graphs():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 24), nn.Linear(24, 3)).eval()
    mg = MaseGraph(net, dummy_in={"input": torch.randn(4, 32)})
    return mg, pack_weights(mg, parse_format_string("scale_integer:width=8"))


@pytest.mark.parametrize(
    ("change", "told", "difference"),
    [
        (lambda x: x, "2 of 2, 1 not given", 0.0),
        (lambda x: x.T, "2 of 2, 1 not given", 0.0),
        (lambda x: torch.nn.functional.pad(x, (0, 8)), "2 of 2, 1 not given", 0.0),
        (lambda x: torch.nn.functional.pad(x, (0, 8)).unflatten(1, (-1, 8)), "2 of 2, 1 no", 0.0),
        (lambda x: x + 0.5 * (x == x.max()), "0 of 2, 1 not given", 0.5),
        (lambda x: x.bfloat16(), "0 of 2, 1 not given", None),
        (lambda x: x[:-1], "0 of 0, 3 not given", None),
    ],
)
def test_weights_are_compared_however_they_are_laid_out(graphs, change, told, difference):
    _, mg = graphs
    given = {p: change(torch.Tensor(mg.model.get_submodule(p).weight)) for p in (TALL, SQUARE)}
    found = compare_weights(mg, given)
    assert str(found).startswith(told) and found.count == 3
    assert difference is None or found.difference == pytest.approx(difference, abs=1e-6)
    assert (found.difference is None) == (not found.compared)


def test_nothing_given_is_nothing_compared(graphs):
    assert str(compare_weights(graphs[1], {})) == "0 of 0, 3 not given"


def test_decoded_graphs_have_the_values_of_codes_and_round_nothing(graphs):
    exact, mg = graphs
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    plain = decoded(mg)
    weights = [g.model.get_submodule(TALL).weight.detach() for g in (plain, mg, exact)]
    assert torch.equal(weights[0], torch.Tensor(weights[1]))
    assert not torch.equal(weights[0], weights[2])
    torch.testing.assert_close(plain.model(x), mg.model(x), atol=1e-5, rtol=1e-5)


def test_an_engine_that_refuses_a_batch_is_not_measured(graphs):
    exact, mg = graphs
    loaded = Loaded(mg, exact, exact.model, "float", None, None)

    def run(inputs):
        if len(inputs["input"]) > 2:
            raise RuntimeError("expected 2 rows\nand more")
        return {"output": mg.model(**inputs)}

    config = ExportConfig("mlp", ("pt2",), batch_sizes=(2, 5), seconds=0.01)
    found = measure_times(loaded, {"pt2": run}, config)
    assert found.missing == {"pt2 at batch 5": "expected 2 rows"}
    assert [(row.engine, row.batch) for row in found.rows] == [
        ("float", 2), ("chop", 2), ("pt2", 2), ("float", 5), ("chop", 5)
    ]  # fmt: skip
    by_chop = {row.engine: row.times_as_chop.median for row in found.rows if row.batch == 2}
    assert by_chop["chop"] == 1 and len(loaded.inputs(7)["input"]) == 7


@pytest.mark.long
def test_test_rows_are_compared_and_what_rounding_again_costs_is_told(tmp_path):
    pytest.importorskip("qonnx", reason="qonnx runs the file")
    how = {"format": "mxint:width=4", "limit": 8, "seconds": 0.0, "out": tmp_path}
    with pytest.raises(ConfigError) as refusal:
        export(ExportConfig("mlp", ("onnx", "qonnx"), **how))
    lines = str(refusal.value).splitlines()
    assert lines[0] == "qonnx cannot store 3 modules:"
    nearest = "scale_integer(width=4, granularity=channel)"
    reason = "QONNX has no node for its weight (mxint(width=4))"
    assert lines[1:4] == [f"  fc{i}: {reason}; nearest: {nearest}" for i in (1, 2, 3)]
    assert lines[4].startswith("No files were written. --nearest rounds these modules")
    assert [file.name for file in tmp_path.iterdir()] == ["manifest.json"]
    rows = {
        row.target: row
        for row in export(ExportConfig("mlp", ("onnx", "qonnx"), nearest=True, **how))
    }
    assert [change.path for change in rows["qonnx"].changes] == ["fc1", "fc2", "fc3"]
    found = rows["onnx"].rows
    assert (found.agreed, found.answers, found.score.rows) == (8, 8, 8)
    assert found.difference < 1e-3 < found.largest and rows["qonnx"].rows.agreed == 8
    assert (
        rows["onnx"].changes == rows["onnx"].times == () and str(rows["onnx"].weights) == "3 of 3"
    )
    table = (tmp_path / "table.md").read_text()
    names = [line.split("|")[1].strip() for line in table.splitlines() if "%" in line]
    assert names == ["chop", "float", "onnx", "chop for qonnx", "qonnx"] and "| 8 of 8 |" in table
    assert (
        "| chop for qonnx |" in table and f"| qonnx | fc2 | mxint(width=4) | {nearest} |" in table
    )
    assert runs.read_manifest(tmp_path).rows[1]["changes"][0]["new"] == nearest


def test_modules_that_nothing_helps_are_listed():
    changes = {
        "gguf": [Change(f"layer{i}", "it is odd", None, None) for i in range(10)],
        "onnx": [],
    }
    with pytest.raises(ConfigError) as refusal:
        check_changes(changes, True)
    lines = str(refusal.value).splitlines()
    assert lines[0] == "gguf cannot store 10 modules:" and lines[9] == "  and 2 more"
    assert lines[1] == "  layer0: it is odd; nearest: none" and lines[10].startswith("No files")
    check_changes({"onnx": []}, False)


def test_inputs_that_become_floats_are_told():
    weight = parse_format_string("scale_integer:width=8")
    old = QuantSpec(data_in=parse_format_string("fp8"), weight=weight)
    news = [old, QuantSpec(weight=weight), QuantSpec()]
    with pytest.raises(ConfigError) as refusal:
        check_changes({"pt2": [Change("a", "it is odd", old, new) for new in news]}, False)
    nearest = [line.partition("nearest: ")[2] for line in str(refusal.value).splitlines()[1:4]]
    label = weight.label
    assert nearest == [describe(old), f"{label}, inputs float", "float"]


def test_rows_of_a_checkpoint_without_a_run_are_not_known(graphs, tmp_path):
    graphs[1].export(tmp_path / "model")
    loaded = load_graph(ExportConfig(str(tmp_path), ("pt2",)))
    assert loaded.workload is None and loaded.why_no_rows is None
    with pytest.raises(CheckpointError, match="expected the output folder of chop compress"):
        load_graph(ExportConfig(str(tmp_path), ("pt2",), dataset="digits"))


@pytest.mark.parametrize("text", ["fp8", "scale_integer:width=8"])
@pytest.mark.long
def test_a_wrong_layer_is_found_where_found_scales_of_inputs_would_hide_it(text, tmp_path):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors reads the folder")
    formats = [parse_format_string(f"{text}:granularity={x}") for x in ("channel", "row")]
    mg = pack_weights(captured("Llama"), *formats)
    kind = target("compressed-tensors")
    path = kind.export(mg, tmp_path / "out").path
    check_unrounded(mg, path, kind)
    tensors = load_file(path / "model.safetensors")
    tensors[f"{VALUES}.weight_scale"] *= 1.5
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    exact = exact_graph(mg)
    assert example_difference(exact, kind.read(path), kind, MOST_DYNAMIC) > 0
    with pytest.raises(VerificationError, match="more than rounding explains"):
        check_unrounded(mg, path, kind)
    # The graph still rounds what its layers are given.
    linear = [m for m in packed_layers(mg.model).values() if isinstance(m, nn.Linear)]
    assert linear and all(not m.spec.data_in.is_identity for m in linear)


@pytest.mark.parametrize("anything", [40.0, float("nan"), float("inf")])
@pytest.mark.parametrize("task", ["causal-lm", "token-classification"])
def test_what_an_engine_makes_of_padding_is_no_difference(anything, task):
    workload = SimpleNamespace(task=TASKS[task])
    labels = torch.tensor([[1, 2, 3, 4], [1, 2, IGNORED, IGNORED]])
    own = torch.randn(2, 4, 5)
    found = own + 1e-6
    found[1, 2:] = anything
    proof = RowProof()
    proof.add(workload, found, own, labels)
    assert proof.difference == pytest.approx(1e-6, rel=0.5) and proof.agreed == proof.answers
    found[1, 0] = anything
    proof.add(workload, found, own, labels)
    assert not proof.difference < 1
    with pytest.raises(VerificationError, match=r"expected logits \[2, 4, 5\], got \[2, 3, 5\]"):
        proof.add(workload, found[:, :3], own, labels)


@pytest.mark.parametrize("task", ["causal-lm", "token-classification", "classification"])
def test_a_batch_without_an_answer_that_counts_changes_nothing(task):
    workload = SimpleNamespace(task=TASKS[task])
    shape = (3,) if task == "classification" else (3, 1)
    labels, own = torch.full(shape, IGNORED), torch.randn(*shape, 5)
    proof = RowProof()
    proof.add(workload, own + 40, own, labels)
    assert (proof.agreed, proof.answers, proof.difference, proof.largest) == (0, 0, 0.0, 0.0)
