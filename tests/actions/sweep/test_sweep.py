import csv
import json
import random
import time

import pytest
import torch

from chop.actions.search.sensitivity import SensitivityConfig, measure_sensitivity
from chop.actions.sweep.grid import parse_range, whole
from chop.actions.sweep.points import Point, get_identity, measure_all
from chop.actions.sweep.prune import PruneSweepConfig, prune_sweep
from chop.actions.sweep.quantize import QuantizeSweepConfig, quantize_sweep
from chop.errors import ConfigError
from chop.runs import Journal, read_manifest
from chop.runs.progress import Estimate, TimeLeft, work_bar
from chop.train import Rows
from chop.workloads.fingerprints import fingerprint_of_rows
from chop.workloads.load import load_workload
from chop.workloads.settings import WorkloadConfig
from tests import programs
from tests.programs import COMMAND
from tests.subcases import subcases
from tests.workloads import own_text_model


def table(folder):
    """The table but for what differs from run to run."""
    rows = csv.DictReader((folder / "table.csv").read_text().splitlines())
    return without_seconds(rows)


def without_seconds(rows):
    return [{name: x for name, x in row.items() if name != "seconds"} for row in rows]


def lines_in(file):
    return file.read_bytes().count(b"\n") if file.exists() else 0


# --- ranges --------------------------------------------------------------------------------------


def test_ranges_include_both_ends_and_are_exact():
    assert parse_range("4:32:4", "w") == (4, 8, 12, 16, 20, 24, 28, 32)
    assert parse_range("0.1:0.9:0.1", "s") == tuple(float(f"0.{i}") for i in range(1, 10))
    assert parse_range("8, 2:4, 8", "w") == (2, 3, 4, 8)
    assert parse_range((0.5, 0.2), "s") == (0.2, 0.5)
    assert whole(parse_range(6, "w"), "w") == (6,)


@pytest.mark.parametrize(
    "text", ["", "4:", "8:4", "4:8:0", "4:8:-1", "a:b", "nan", "0:1e9", "1:inf"]
)
def test_misspelt_ranges_are_refused(text):
    with pytest.raises(ConfigError, match="widths"):
        parse_range(text, "widths")


@subcases(
    "cls, settings, message",
    [
        (QuantizeSweepConfig, {"widths": "4.5"}, "expected whole numbers, got 4.5"),
        (QuantizeSweepConfig, {"widths": "99"}, "got 99"),
        (QuantizeSweepConfig, {"frac": "hlaf"}, "frac: 'hlaf' is neither"),
        (QuantizeSweepConfig, {"widths": "4", "frac": "8"}, "expected a fraction below"),
        (PruneSweepConfig, {"sparsity": "2:4"}, '\'2:4\' is a pattern .* {"granularity": "2:4"}'),
        (PruneSweepConfig, {"sparsity": "30%,50%"}, "expected shares; for per cent, write 0.3"),
        (PruneSweepConfig, {"sparsity": "0.1:0.5"}, "since the step is 1; .* as 0.1:0.5:0.1"),
        (PruneSweepConfig, {"sparsity": "0.5:1:0.5"}, "got 1.0, expected 0 to below 1"),
        (PruneSweepConfig, {"methods": ("l1-nrom",)}, "did you mean 'l1-norm'"),
        (PruneSweepConfig, {"methods": ()}, "at least one"),
        (PruneSweepConfig, {"sparsity": ()}, "at least one number"),
        (PruneSweepConfig, {"operators": ("linear", "cnv2d")}, "did you mean 'conv2d'"),
        (QuantizeSweepConfig, {"widths": ()}, "at least one number"),
        (PruneSweepConfig, {"scope": "globel"}, "did you mean 'global'"),
        (QuantizeSweepConfig, {"integer_bits": "0:4"}, "got 0, expected 1 or more for the sign"),
        (QuantizeSweepConfig, {"fraction_bits": "4:32:4"}, "got 33"),
        (QuantizeSweepConfig, {"integer_bits": "1:6", "widths": 8}, "leave out widths and frac"),
        (PruneSweepConfig, {"activation": ("l1",)}, "got 'l1': did you mean 'l1-norm'"),
        (PruneSweepConfig, {"parts": ("both",)}, "activation: expected at least one method"),
        (PruneSweepConfig, {"parts": ("wieghts",)}, "did you mean 'weights'"),
        (
            PruneSweepConfig,
            {"activation": ("random",), "activation_sparsity": "0.5:1:0.5"},
            "activation_sparsity: got 1.0, expected 0 to below 1",
        ),
    ],
)
def test_settings_are_checked_before_anything_runs(cls, settings, message):
    with pytest.raises(ConfigError, match=message):
        cls(**settings)


# --- the journal ---------------------------------------------------------------------------------


def test_a_point_is_measured_once_and_a_torn_line_is_measured_again(tmp_path):
    path = tmp_path / "points.jsonl"
    measured = []

    def point(width):
        def measure():
            measured.append(width)
            return {"accuracy": width / 10}

        return Point(str(width), {"width": width}, measure)

    points = [point(1), point(2), point(1)]
    first = measure_all("t", points, Journal(path))
    assert [row["accuracy"] for row in first] == [0.1, 0.2, 0.1]
    assert measured == [1, 2]
    path.write_bytes(path.read_bytes()[:-5])
    assert measure_all("t", points, Journal(path)) == first
    assert measured == [1, 2, 2]
    assert measure_all("t", points, Journal(path)) == first
    assert measured == [1, 2, 2]


def test_the_time_left_is_a_column_of_the_bar():
    now = [0.0]
    estimate = Estimate(["QAT", "QAT"], lambda: now[0])
    (column,) = (c for c in work_bar(estimate).columns if isinstance(c, TimeLeft))
    assert str(column.render(None)) == "-:--:-- left"
    estimate.begin("QAT")
    now[0] = 162
    estimate.end()
    assert str(column.render(None)) == "0:02:42 left"


def changed(before, after):
    return {name for name in before if before[name] != after[name]}


@pytest.mark.long
def test_other_weights_and_other_rows_are_another_subject():
    workload = load_workload(WorkloadConfig(model="mlp"))
    before = get_identity(workload)
    assert get_identity(load_workload(WorkloadConfig(model="mlp"))) == before
    next(workload.model.parameters()).data[0, 0] += 1e-6
    assert changed(before, get_identity(workload)) == {"weights"}
    workload.train.labels[0] += 1
    assert changed(before, get_identity(workload)) == {"weights", "train"}
    workload.test.columns["pixel_values"][0] *= 0.5
    assert changed(before, get_identity(workload)) == {"weights", "train", "test"}


def test_texts_cut_elsewhere_are_other_rows():
    long = [torch.tensor([1, 2, 3]), torch.tensor([4, 5])]
    labels = torch.tensor([0, 1])
    told = {
        fingerprint_of_rows(Rows({"input_ids": [row[:length] for row in long]}, labels))
        for length in (3, 2, 1)
    }
    assert len(told) == 3
    assert fingerprint_of_rows(Rows({"input_ids": list(long)}, labels)) in told


# --- the sweeps ----------------------------------------------------------------------------------


@pytest.mark.long
def test_a_method_or_sparsity_named_twice_is_measured_once(tmp_path):
    config = PruneSweepConfig(
        model="mlp", out=tmp_path, sparsity="0,0.5,0.5", methods=("l1-norm",) * 2, finetune_epochs=0
    )
    rows = prune_sweep(config)
    assert [(row["sparsity"], row["actual sparsity"]) for row in rows] == [(0, 0), (0.5, 0.5)]
    assert rows[0]["pruned"] == rows[0]["float"] and lines_in(tmp_path / "points.jsonl") == 3
    assert "| 0.00% " in (tmp_path / "table.md").read_text()


SWEEPS = {
    "widths": (quantize_sweep, QuantizeSweepConfig, {"widths": "8", "qat_epochs": 0}),
    "split": (
        quantize_sweep,
        QuantizeSweepConfig,
        {"integer_bits": "3", "fraction_bits": "5", "qat_epochs": 0},
    ),
    "prune": (prune_sweep, PruneSweepConfig, {"sparsity": "0.5", "finetune_epochs": 0}),
    "sensitivity": (
        measure_sensitivity,
        SensitivityConfig,
        {"formats": ("4.auto",), "metrics": ("weight_error",)},
    ),
}


@pytest.mark.parametrize(("sweep", "kind", "settings"), SWEEPS.values(), ids=SWEEPS)
@pytest.mark.sampled(1)
def test_a_full_disk_leaves_no_table_without_its_figures(
    sweep, kind, settings, tmp_path, monkeypatch
):
    class FullError(OSError):
        pass

    def full(*args, **kwargs):
        assert not {path.name for path in tmp_path.glob("*.csv")}
        raise FullError

    monkeypatch.setattr("chop.report.figures.draw.save_figure", full)
    with pytest.raises(FullError):
        sweep(kind(model="mlp", out=tmp_path, **settings))
    left = {path.name for path in tmp_path.iterdir()}
    assert left - {"points.jsonl"} == {"manifest.json"}
    assert read_manifest(tmp_path).state == "failed"


@pytest.mark.long
def test_a_heat_map_has_the_numbered_fractions_and_no_others(tmp_path):
    config = QuantizeSweepConfig(
        model="mlp", out=tmp_path, widths="6:8:2", frac="-2,4,half,auto", qat_epochs=0
    )
    assert [row["frac_width"] for row in quantize_sweep(config)] == [
        -2,
        -2,
        4,
        4,
        3,
        "auto",
        "auto",
    ]
    picture = (tmp_path / "heatmap-ptq.svg").read_text()
    assert "<!-- 4 -->" in picture and "<!-- 3 -->" not in picture
    assert not (tmp_path / "heatmap-qat.svg").exists()


def test_a_killed_sweep_ends_with_the_table_of_an_unbroken_one(tmp_path):
    command = [COMMAND, "sweep", "quantize", "--model", "mlp", "--limit", "300"]
    command += ["--widths", "4:8:2", "--qat-epochs", "3"]
    whole_run, broken = tmp_path / "whole", tmp_path / "broken"
    assert programs.run(*command, "--out", whole_run).returncode == 0
    draw = random.Random()
    points = broken / "points.jsonl"
    for wanted in (1, 3):
        with programs.started(*command, "--out", broken) as process:
            while process.is_alive() and lines_in(points) < wanted:
                time.sleep(0.002)
            time.sleep(draw.uniform(0, 0.02))
    before = points.read_text().splitlines()
    assert not (broken / "table.csv").exists()
    assert read_manifest(broken).state == "interrupted"
    assert programs.run(*command, "--out", broken).returncode == 0
    assert table(broken) == table(whole_run)
    for name in ("table.csv", "table.md", "accuracy.svg"):
        assert (broken / name).read_bytes() == (whole_run / name).read_bytes()
    header = (whole_run / "times.csv").read_text().splitlines()[0]
    assert header.endswith(",seconds") and "seconds" not in table(whole_run)[0]
    manifests = [read_manifest(folder) for folder in (broken, whole_run)]
    rows = [without_seconds(manifest.rows) for manifest in manifests]
    assert rows[0] == rows[1] and len(rows[0]) == len(table(broken))
    assert {"points.jsonl", "table.csv", "accuracy.svg"} <= {a.path for a in manifests[0].artifacts}
    after = [json.loads(line)["settings"] for line in points.read_text().splitlines()]
    assert len(after) == len({json.dumps(settings) for settings in after}), "measured twice"
    assert len(after) >= len(before) >= 3


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_sweep_of_ones_own_model_goes_on_from_its_fine_tuned_weights(tmp_path):
    command = [COMMAND, "sweep", "prune", "--model", own_text_model(tmp_path / "own")]
    command += ["--dataset", "reviews", "--limit", "200", "--max-length", "24"]
    command += ["--train-epochs", "2", "--sparsity", "0.3,0.6", "--finetune-epochs", "1"]
    whole_run, broken = tmp_path / "whole", tmp_path / "broken"
    assert programs.run(*command, "--out", whole_run).returncode == 0
    points = broken / "points.jsonl"
    with programs.started(*command, "--out", broken) as process:
        while process.is_alive() and lines_in(points) < 2:
            time.sleep(0.002)
    assert not (broken / "table.csv").exists()
    (weights,) = broken.glob("fine-tuned-*.safetensors")
    written = weights.stat().st_mtime_ns
    elsewhere = broken.rename(tmp_path / "elsewhere")
    resumed = programs.run(*command, "--out", elsewhere)
    assert table(elsewhere) == table(whole_run)
    assert (elsewhere / weights.name).stat().st_mtime_ns == written
    assert lines_in(elsewhere / "points.jsonl") == lines_in(whole_run / "points.jsonl") == 9
    assert "of 9 points are already in" in resumed.stdout


WRONG = (
    *({}, {"accuracy": "0.5"}, {"accuracy": [0.5]}, {"accuracy": None}, {"low": 0.5}),
    {"accuracy": 0.5, "low": {}},
)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_result_of_a_wrong_form_is_measured_again(wrong, tmp_path):
    path = tmp_path / "points.jsonl"
    path.write_text(json.dumps({"settings": {"width": 4}, "result": wrong}) + "\n")
    measured = []

    def measure():
        measured.append(1)
        return {"accuracy": 0.75}

    point = Point("a", {"width": 4}, measure, names=("accuracy",))
    for _ in range(2):
        assert measure_all("title", [point], Journal(path)) == [{"accuracy": 0.75}]
    assert measured == [1]
