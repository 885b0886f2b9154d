import dataclasses
import errno
import json
import math
import signal
import time
from pathlib import Path

import pytest
import torch
from datasets import Dataset, DatasetDict
from torch import nn

from chop import MaseGraph, passes
from chop.actions.bench.job import BenchModelConfig, bench_model
from chop.actions.compress.job import CompressConfig, compress
from chop.actions.compress.table import Row
from chop.errors import CheckpointError, ConfigError, UnavailableError, WriteError
from chop.formats import parse_format_string
from chop.report.document import read_document
from chop.runs import MANIFEST, read_manifest
from chop.statistics.intervals import wilson
from chop.train import (
    TASKS,
    Rows,
    default_dataset,
    evaluate,
    fit,
    load_trained,
    read_rows,
    split_rows,
)
from chop.workloads.load import load_workload
from tests import programs
from tests.subcases import subcases


@pytest.fixture
def own_splits():
    """Rows of a model of one's own, labels that tell the splits apart."""
    columns = {"x": [[0.0] * 4] * 10}
    splits = {"train": [0, 1] * 5, "validation": [1] * 10, "test": [0] * 10}
    return {
        name: Dataset.from_dict({**columns, "labels": labels}) for name, labels in splits.items()
    }


def load_subject_of(config, data):
    """What `load_workload` makes of a data set, with a model that is no matter."""
    with pytest.MonkeyPatch.context() as patch:
        loaded = nn.Linear(4, 2), DatasetDict(data), TASKS["classification"], (), ()
        patch.setattr("chop.workloads.load.load_checkpoint", lambda config: loaded)
        return load_workload(config)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "cnn"
    config = CompressConfig(model="cnn", out=out, formats=("8.5", "4.2", "4.auto"), qat_epochs=3)
    return compress(config), out


@pytest.mark.long
def test_every_format_is_trained_where_that_is_asked_for(tmp_path):
    formats = ("8.auto", "4.2")
    found = rows(compress(quick(tmp_path, formats=formats, qat="all", qat_epochs=1)))
    assert {label for method, label in found if method == "QAT"} == {
        label for method, label in found if method == "PTQ"
    }
    assert len(found) == 5


def results_in(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != MANIFEST}


def rows(result):
    return {(row["method"], row["format"]): row for row in result["rows"]}


def test_the_table_has_the_expected_shape(result):
    found = rows(result[0])
    exact = found["float", "float"]["accuracy"]
    assert exact > 0.95
    assert found["PTQ", "integer 8.5"]["accuracy"] > exact - 0.01
    assert found["PTQ", "integer 4.2"]["accuracy"] < exact - 0.3
    assert found["PTQ", "integer 4.auto"]["accuracy"] > exact - 0.05
    lost = exact - found["PTQ", "integer 4.2"]["accuracy"]
    assert exact - found["QAT", "integer 4.2"]["accuracy"] < lost / 2


def test_the_page_has_weights_inputs_and_bits_of_each_layer(result):
    told, out = result
    page = read_document(out)
    weights, inputs = (chart for chart in page.charts if chart.kind == "histograms")
    formats = {row["layer"]: row for row in told["formats"]}
    shapes = {"conv1": (1, 8, 8), "conv2": (16, 8, 8), "fc": (512,)}
    for operand, chart in (("weight", weights), ("data_in", inputs)):
        assert {panel.title for panel in chart.panels} == formats.keys() == shapes.keys()
        for panel in chart.panels:
            number_format = parse_format_string(formats[panel.title][operand])
            assert list(panel.grids) == [number_format.label]
            values = torch.tensor(panel.grids[number_format.label])
            assert torch.equal(number_format(values), values)
    for panel in inputs.panels:  # all numbers of whole rows
        assert sum(panel.counts) % math.prod(shapes[panel.title]) == 0 < sum(panel.counts)
    table = page.tables[0]
    bits = [row[table.columns.index("bits")] for row in table.values]
    widths = [parse_format_string(formats[row[0]]["weight"]).width for row in table.values]
    assert bits == widths


def test_the_result_has_the_error_and_the_formats_of_each_layer(result):
    told, _ = result
    layers, formats = ({row["layer"]: row for row in told[name]} for name in ("layers", "formats"))
    assert layers.keys() == formats.keys() and len(layers) == 3
    for name, row in layers.items():
        assert 0 < row["weight_error"] < 0.05
        operands = dict(formats[name])
        assert operands.pop("layer") == name and {"data_in", "weight"} <= operands.keys()
        assert {parse_format_string(text).label for text in operands.values()} >= {row["format"]}


def test_every_accuracy_has_its_interval(result):
    told, out = result
    assert told["row_counts"] == {"train": 1150, "validation": 287, "test": 360}
    for row in told["rows"]:
        for name, value, count in (
            ("validation", row["validation"], 287),
            ("test", row["accuracy"], 360),
        ):
            low, high = row[f"{name}_interval_95"]
            assert (low, high) == pytest.approx(wilson(round(value * count), count))
            assert low < value < high
    written = json.loads((out / "result.json").read_text())
    assert written["rows"][0]["test_interval_95"] == list(told["rows"][0]["test_interval_95"])
    table, first = (out / "table.md").read_text(), told["rows"][0]
    low, high = (100 * end for end in first["test_interval_95"])
    assert f"| {first['accuracy']:.2%} ({low:.1f} to {high:.1f}) |" in table
    assert (
        "287 validation and 360 test rows. The intervals are 95 % Wilson score intervals." in table
    )


@pytest.mark.long
def test_layers_have_formats_of_their_own(tmp_path):
    layers = {"fc1": {"weight": "4.mse", "data_in": "8.mse"}, "fc3": {"weight": "mxint:width=4"}}
    quick = {"qat_epochs": 0, "bench_seconds": 0}
    found = compress(CompressConfig(model="mlp", out=tmp_path, formats=(), layers=layers, **quick))
    row = rows(found)["PTQ", "mixed"]
    assert row["quantized"] == 2 and 4 < row["bits"] < 32
    mg = MaseGraph.from_checkpoint(tmp_path / "model")
    test = default_dataset("mlp")["test"]
    assert evaluate(mg.model, test) == pytest.approx(row["accuracy"])


def test_a_layer_that_is_not_there_is_named_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "chop.actions.compress.whole.measure", lambda *args: pytest.fail("it measured")
    )
    config = CompressConfig(model="mlp", out=tmp_path, layers={"fc9": {"weight": "4.mse"}})
    with pytest.raises(ConfigError, match="'fc9': did you mean"):
        compress(config)


def test_bits_and_sizes_are_those_of_the_formats(result):
    found = rows(result[0])
    assert found["float", "float"]["bits"] == 32.0
    assert 4 < found["PTQ", "integer 4.2"]["bits"] < 5
    ratio = found["float", "float"]["size_kb"] / found["PTQ", "integer 4.2"]["size_kb"]
    assert ratio == pytest.approx(32 / found["PTQ", "integer 4.2"]["bits"])
    assert found["PTQ", "integer 4.2"]["quantized"] == 3


def test_everything_is_written_and_the_model_can_be_read_back(result):
    info, out = result
    names = {"model.pt", "model.mz", "graph.svg", "accuracy.svg", "table.md", "result.json"}
    names |= {"report.html", "report.json", "model.onnx"}
    assert {file.name for file in out.iterdir()} == {*names, MANIFEST}
    manifest = read_manifest(out)
    assert {artifact.path: artifact.size_bytes for artifact in manifest.artifacts} == {
        name: (out / name).stat().st_size for name in names
    }
    assert json.loads(json.dumps(info["rows"])) == list(manifest.rows)
    assert (manifest.kind, manifest.state) == ("compress", "finished")
    assert manifest.settings["formats"] == ["8.5", "4.2", "4.auto"]
    assert json.loads((out / "result.json").read_text()) == json.loads(json.dumps(info))
    reloaded = MaseGraph.from_checkpoint(out / "model")
    accuracy = evaluate(reloaded.model, default_dataset("cnn"))
    assert accuracy == info["saved"]["accuracy"]
    assert "integer" in (out / "graph.svg").read_text()


def test_the_saved_files_are_really_small_and_sizes_are_theirs(result):
    info, out = result
    assert info["saved_bytes"] == {n: (out / n).stat().st_size for n in ("model.pt", "model.mz")}
    reloaded = MaseGraph.from_checkpoint(out / "model")
    kinds = {type(module).__name__ for module in reloaded.model.modules()}
    assert "PackedConv2d" in kinds and "PackedLinear" in kinds and "QuantLinear" not in kinds
    weights = info["saved"]["size_kb"] * 1000
    assert weights <= info["saved_bytes"]["model.pt"] < weights + 2000  # names and shapes
    exact = info["rows"][0]["size_kb"] * 1000
    assert exact <= info["float_bytes"]["model.pt"] < exact + 2000
    assert f"{info['saved_bytes']['model.pt'] / 1000:.1f} kB" in (out / "table.md").read_text()


def test_the_saved_model_can_be_trained_on(result):
    mg = MaseGraph.from_checkpoint(result[1] / "model")
    mg, info = passes.pack_transform_pass(mg, {"unpack": True, "silent": True})
    assert info["unpacked"] == 3
    before = [parameter.clone() for parameter in mg.model.parameters()]
    fit(mg.model, default_dataset("cnn"), epochs=1, lr=1e-3)
    assert any(not torch.equal(a, b) for a, b in zip(before, mg.model.parameters(), strict=True))


@pytest.mark.long
def test_a_model_without_quantized_weights_is_saved_as_it_is(tmp_path):
    config = CompressConfig(
        model="mlp", out=tmp_path, operators=("relu",), formats=("8.4",), qat_epochs=0
    )
    info = compress(config)
    assert info["saved_bytes"]["model.pt"] == info["float_bytes"]["model.pt"]
    assert MaseGraph.from_checkpoint(tmp_path / "model").model is not None


def test_the_smallest_good_model_is_saved(result):
    info, _ = result
    exact = info["rows"][0]["validation"]
    good = [row for row in info["rows"][1:] if row["validation"] >= exact - 0.01]
    assert info["saved"]["bits"] == min(row["bits"] for row in good)
    assert set(info["saved"]) == {*Row.__dataclass_fields__, "accuracy"} - {"test"}


def quick(out, **settings):
    usual = {"model": "mlp", "qat_epochs": 0, "bench_seconds": 0}
    return CompressConfig(out=out, **{**usual, **settings})


@pytest.mark.long
def test_formats_are_chosen_without_a_look_at_the_test_rows(tmp_path):
    workload = load_workload(quick(tmp_path))
    honest = compress(quick(tmp_path))
    wrong = Rows(workload.test.columns, (workload.test.labels + 1) % 10)
    other = dataclasses.replace(workload, test=wrong)
    blind = compress(quick(tmp_path, force=True), other)
    assert blind["saved"]["format"] == honest["saved"]["format"]
    assert blind["saved"]["validation"] == honest["saved"]["validation"]
    assert blind["saved"]["accuracy"] < 0.1 < 0.9 < honest["saved"]["accuracy"]


def test_validation_rows_are_in_no_other_split(tmp_path):
    workload = load_workload(quick(tmp_path))
    parts = (workload.train, workload.validation, workload.test)
    pictures = [{x.numpy().tobytes() for x in rows.columns["pixel_values"]} for rows in parts]
    assert [len(rows) for rows in parts] == [1150, 287, 360]
    assert not pictures[1] & pictures[0] and not pictures[1] & pictures[2]
    limited = load_workload(quick(tmp_path, limit=50))
    assert [len(rows) for rows in (limited.train, limited.validation, limited.test)] == [50] * 3
    assert torch.equal(limited.model.fc1.weight, workload.model.fc1.weight)


@pytest.mark.long
def test_a_built_in_model_has_not_been_trained_on_its_validation_rows(tmp_path):
    rows = read_rows(default_dataset("mlp")["train"])
    workload = load_workload(quick(tmp_path))
    assert torch.equal(workload.validation.labels, split_rows(rows)[1].labels)
    seen = evaluate(load_trained("mlp"), workload.validation)
    assert evaluate(workload.model, workload.validation) < seen == 1.0


def test_a_split_of_validation_rows_is_taken_as_it_is(own_splits, tmp_path):
    def loaded(data):
        config = quick(tmp_path, model="own", dataset="own", limit=None)
        return load_subject_of(config, data)

    given = loaded(own_splits)
    assert given.validation.labels.tolist() == own_splits["validation"]["labels"]
    assert not given.has_seen_validation and len(given.train) == len(own_splits["train"])
    del own_splits["validation"]
    held = loaded(own_splits)
    assert held.has_seen_validation
    assert len(held.train) + len(held.validation) == len(own_splits["train"])


def test_without_a_format_within_the_drop_no_model_is_saved(tmp_path, capsys):
    found = compress(quick(tmp_path, formats=("4.2",)))
    assert found["saved"] is None and "speed" not in found
    names = {"accuracy.svg", "result.json", "table.md", "report.html", "report.json", MANIFEST}
    assert {file.name for file in tmp_path.iterdir()} == names
    told = " ".join(capsys.readouterr().out.split())
    assert (
        "No format is within 1.00 percentage points of float" in told
        and "No QAT: --qat-epochs is 0." in told
    )
    assert "the best one, integer 4.2 (PTQ), loses" in told and "--keep-best" in told
    with pytest.raises(CheckpointError, match="saved no model.*--keep-best"):
        bench_model(BenchModelConfig(compressed=tmp_path))


def test_the_best_is_kept_where_that_is_asked_for(tmp_path, capsys):
    found = compress(quick(tmp_path, formats=("4.2", "5.2"), keep_best=True))
    best = max(found["rows"][1:], key=lambda row: row["validation"])
    assert found["saved"] == best and MaseGraph.from_checkpoint(tmp_path / "model").model
    assert "because of --keep-best" in " ".join(capsys.readouterr().out.split())


@pytest.mark.long
def test_an_earlier_model_survives_a_run_that_saves_none(tmp_path, capsys):
    compress(quick(tmp_path, formats=("8.auto",)))
    before = (tmp_path / "model.pt").read_bytes()
    compress(quick(tmp_path, formats=("4.2",)))
    assert (tmp_path / "model.pt").read_bytes() == before
    assert "its model is from an earlier run" in " ".join(capsys.readouterr().out.split())


def test_the_folder_is_made_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr("chop.workloads.load.default_dataset", lambda *a: pytest.fail("worked"))
    (tmp_path / "file").touch()
    with pytest.raises(WriteError, match="under' cannot be written: .*file' is a file, not a"):
        compress(quick(tmp_path / "file" / "under"))


@pytest.mark.parametrize("writer", ["safetensors.torch.save_file", "pathlib.Path.write_text"])
@pytest.mark.sampled(1)
def test_a_disk_that_fills_up_leaves_the_earlier_results(writer, tmp_path, monkeypatch):
    first = compress(quick(tmp_path, formats=("8.auto",)))
    before, manifest = results_in(tmp_path), read_manifest(tmp_path)

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer, full)
    with pytest.raises(WriteError, match="No space left on device; free some space"):
        compress(quick(tmp_path, formats=("6.auto",)))
    assert results_in(tmp_path) == before and read_manifest(tmp_path).results == manifest
    reloaded = MaseGraph.from_checkpoint(tmp_path / "model")
    accuracy = evaluate(reloaded.model, default_dataset("mlp"))
    assert accuracy == first["saved"]["accuracy"]


@pytest.mark.parametrize(
    ("formats", "reason"),
    [
        (("8.auto", "16.8"), "all 2 formats are within --max-drop 0.01 of float"),
        (("5.auto", "8.1"), "a format is within --max-drop 0.01 of float on the validation rows, "),
    ],
)
def test_what_training_could_not_make_smaller_is_not_trained(formats, reason, tmp_path, capsys):
    found = rows(compress(quick(tmp_path, formats=formats, qat_epochs=1)))
    assert [method for method, _ in found] == ["float", "PTQ", "PTQ"]
    assert f"No QAT: {reason}" in " ".join(capsys.readouterr().out.split())


def test_formats_that_lose_most_weights_are_marked_in_the_table(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    found = compress(quick(tmp_path, formats=("8.auto", "4.2"), keep_best=True))
    assert found["rows"][1]["poor_fit"] is None
    assert "layers fit badly" in found["rows"][2]["poor_fit"]
    told = " ".join(capsys.readouterr().out.split())
    assert "4.2 *" in told and "* integer 4.2: 2 of 3 layers fit badly" in told
    written = (tmp_path / "table.md").read_text()
    assert "| PTQ | integer 4.2 * |" in written and "\n* integer 4.2: 2 of 3 layers" in written


def test_a_killed_run_leaves_no_result(tmp_path):
    told, out = tmp_path / "told", tmp_path / "out"
    told.mkdir()
    command = [programs.COMMAND, "compress", "--model", "mlp", "--qat-epochs", 500, "--out", out]
    with programs.started(*command, told=told) as process:
        while process.is_alive() and "PTQ" not in (told / "stdout").read_text():
            time.sleep(0.01)
    assert process.exitcode == -signal.SIGKILL
    assert not (out / "result.json").exists()
    assert [file.name for file in out.iterdir() if file.suffix == ".json"] == [MANIFEST]
    assert read_manifest(out).state == "interrupted"


@subcases(
    "settings, message",
    [
        ({"formats": ("mxnit",)}, "did you mean 'mxint'"),
        ({"formats": ()}, "formats: expected at least one"),
        ({"formats": (), "layers": {"fc1": {"wieght": "4.mse"}}}, "did you mean 'weight'"),
        ({"formats": (), "layers": {"fc1": {"weight": "4"}}}, "expected width.fraction"),
        ({"method": ("gpq",)}, "method: unknown 'gpq': did you mean 'gptq'"),
        ({"operands": ()}, "operands: expected at least one"),
        (
            {"operands": ("bias",), "method": ("gptq",)},
            "operands: .*method and overrides round weights",
        ),
        ({"operators": ("linaer",)}, "did you mean 'linear'"),
        ({"operators": ("dropout",)}, "unknown 'dropout'"),
        ({"out": Path(__file__)}, "is a file, expected a folder"),
    ],
)
def test_settings_are_checked_at_once(settings, message):
    with pytest.raises(ConfigError, match=message):
        CompressConfig(**settings)


def test_models_and_data_that_do_not_fit_are_named(tmp_path):
    with pytest.raises(ConfigError, match="is trained on 'digits', not on 'imdb'"):
        compress(CompressConfig(model="mlp", dataset="imdb", out=tmp_path))
    with pytest.raises(ConfigError, match="needs a data set: pass --dataset"):
        compress(CompressConfig(model="prajjwal1/bert-tiny", out=tmp_path))
    with pytest.raises(UnavailableError, match="the hub cannot be reached"):
        compress(CompressConfig(model="some/model", dataset="reviews", out=tmp_path))
    with pytest.raises(ConfigError, match="device 'cuda:77' is not available here; choose from"):
        compress(CompressConfig(model="mlp", device="cuda:77", out=tmp_path))
    with pytest.raises(ConfigError, match="has none of the operators conv2d; it has: .*linear"):
        compress(CompressConfig(model="mlp", operators=("conv2d",), out=tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == [MANIFEST]
    manifest = read_manifest(tmp_path)
    assert manifest.state == "failed" and "none of the operators conv2d" in manifest.error


@pytest.mark.long
def test_methods_are_applied_in_their_order_and_beat_rounding_to_nearest(tmp_path):
    settings = {"model": "mlp", "formats": ("mxint:width=3",), "qat_epochs": 0, "bench_seconds": 0}
    nearest = compress(CompressConfig(out=tmp_path / "nearest", keep_best=True, **settings))
    methods = ("gptq", "awq", "smoothquant")
    better = compress(
        CompressConfig(out=tmp_path / "better", keep_best=True, method=methods, **settings)
    )
    lost = [
        exact["accuracy"] - rounded["accuracy"]
        for exact, rounded in (result["rows"] for result in (nearest, better))
    ]
    assert [row["method"] for row in better["rows"]] == ["float", "SmoothQuant+AWQ+GPTQ"]
    assert [row["method"] for row in nearest["rows"]] == ["float", "PTQ"]
    assert lost[1] < lost[0]
    mg = MaseGraph.from_checkpoint(tmp_path / "better" / "model")
    found = evaluate(mg.model, default_dataset("mlp")["test"])
    assert found == pytest.approx(better["rows"][1]["accuracy"])
