"""Pruning sweeps of activations, of several seeds, and from a quantized model."""

import dataclasses
import re

import pytest
import torch

from chop import passes, runs
from chop.actions.starting_run import config_of_run
from chop.actions.sweep.prune import prune_sweep
from chop.actions.sweep.quantize import quantize_sweep
from chop.actions.sweep.settings import PruneSetting, PruneSweepConfig, QuantizeSweepConfig
from chop.actions.sweep.start import find_start
from chop.errors import CheckpointError, ConfigError
from chop.train import evaluate
from chop.workloads.workload import Workload
from tests import workloads

INTEGER = {"config": {"name": "integer", "width": 8, "frac_width": 5}}


@pytest.fixture(scope="module")
def workload():
    return Workload.of(workloads.plain(), *workloads.rows())


def config(out, **settings):
    settings = {"sparsity": "0.5", "finetune_epochs": 0, **settings}
    return PruneSweepConfig(out=out, **settings)


def lines_in(folder):
    return len((folder / "points.jsonl").read_text().splitlines())


def test_points_are_each_method_of_weights_with_each_of_inputs(tmp_path):
    both = ("l1-norm", "random")
    found = config(tmp_path, sparsity="0.25,0.5", activation=both).settings()
    assert len(found) == 4 + 4 + 8
    assert PruneSetting(("random", 0.5), ("l1-norm", 0.5)) in found
    fixed = config(tmp_path, sparsity="0.25,0.5", activation=both[:1], activation_sparsity=0.75)
    assert [s.activation for s in fixed.settings()[4:]] == [("l1-norm", 0.75)] * 5
    alone = config(tmp_path, activation=both[:1], parts=("activations",)).settings()
    assert alone == [PruneSetting(None, ("l1-norm", 0.5))]


@pytest.fixture(scope="module")
def quantized(workload, tmp_path_factory):
    """The folder of a sweep of widths, and its best row and stage."""
    out = tmp_path_factory.mktemp("quantized")
    rows = quantize_sweep(QuantizeSweepConfig(out=out, widths="3,8", qat_epochs=2), workload)
    best = max((row[stage], -row["bits"]) for row in rows for stage in ("PTQ", "QAT"))
    return out, best[0]


@pytest.mark.long
def test_weights_and_inputs_of_the_best_quantized_model(workload, quantized, tmp_path, capsys):
    folder, best = quantized
    both = ("l1-norm", "random")
    settings = {"start_from": folder, "activation": both, "seeds": 2}
    rows = prune_sweep(config(tmp_path, **settings), workload)
    assert re.search("start: (QAT|PTQ) 8.4 of ", capsys.readouterr().out)
    parts = [(row["pruned part"], row["method"], row["activation method"]) for row in rows]
    assert parts[:4] == [
        *(("weights", method, None) for method in both),
        *(("activations", None, method) for method in both),
    ]
    assert parts[4:] == [("both", a, b) for a in both for b in both]
    for row in rows:
        assert row["start"] == best and row["float"] == evaluate(workload.model, workload.test)
        assert row["actual sparsity"] is None or row["actual sparsity"] >= 0.5
        assert 0 <= row["seconds"] < 600  # in hundredths, of which a quick one has none
        assert row["zero inputs"] is None or row["zero inputs"] >= 0.5
        draws = "random" in (row["method"], row["activation method"])
        assert draws or row["pruned (least)"] == row["pruned (greatest)"]
    assert rows[0]["pruned"] > rows[1]["pruned"], "random loses more"
    files = {file.name for file in tmp_path.iterdir()}
    assert {"accuracy.svg", "accuracy-activations.svg", "accuracy-both.svg"} <= files
    # float, start, and two seeds of what is random.
    assert lines_in(tmp_path) == 2 + 3 + 3 + (1 + 2 + 2 + 2)
    graphs = list(tmp_path.glob("start-*.mz"))
    written = [file.stat().st_mtime_ns for file in graphs]
    again = prune_sweep(config(tmp_path, **settings), workload)
    assert again == rows and len(graphs) == 1
    assert [file.stat().st_mtime_ns for file in graphs] == written


def test_a_sweep_of_another_model_is_refused(workload, quantized, tmp_path):
    other = workloads.plain()
    torch.nn.init.ones_(other.last.bias)
    changed = dataclasses.replace(workload, model=other)
    with pytest.raises(CheckpointError, match="used another model or other rows"):
        prune_sweep(config(tmp_path, start_from=quantized[0]), changed)


@pytest.mark.long
def test_a_packed_checkpoint_is_pruned_and_trained(workload, tmp_path):
    mg, _ = passes.quantize_transform_pass(workloads.graph(), {"by": "type", "linear": INTEGER})
    mg, _ = passes.pack_transform_pass(mg, {"silent": True})
    mg.export(tmp_path / "own" / "small")
    settings = {"methods": ("l1-norm",), "sparsity": 0.8}
    settings |= {"finetune_epochs": 2, "finetune_lr": 1e-2}
    for name in ("own/small", "own/small.mz", "own"):
        out = tmp_path / "out"
        (row,) = prune_sweep(config(out, start_from=tmp_path / name, **settings), workload)
        assert row["start"] == evaluate(mg.model, workload.test)
        assert row["actual sparsity"] >= 0.8, "one layer is zero from the start"
        assert row["fine-tuned"] > row["pruned"] and lines_in(out) == 4
    with pytest.raises(
        CheckpointError, match="such as chop compress, or one checkpoint, found none"
    ):
        prune_sweep(config(out, start_from=tmp_path), workload)
    with pytest.raises(CheckpointError, match="is from chop sweep prune, which saves no model"):
        prune_sweep(config(out, start_from=out), workload)


def test_a_sweep_without_its_measured_points_says_so(workload, tmp_path):
    with runs.start("sweep quantize", {"out": "runs/s"}, tmp_path) as run:
        run.rows = [{"width": 8, "frac_width": 4, "bits": 8, "PTQ": 0.9}]
    with pytest.raises(CheckpointError, match="lacks points.jsonl, .*: copy the whole folder"):
        find_start(config(tmp_path / "out", start_from=tmp_path), workload)


def test_model_and_data_are_those_of_the_run(tmp_path):
    made = {"model": "cnn", "limit": 50, "seed": 3}
    with runs.start("compress", made, tmp_path):
        (tmp_path / "fine-tuned-abc.safetensors").write_text("weights")
    found = config_of_run(config(tmp_path / "out", start_from=tmp_path), None)
    assert (tmp_path / "out" / "fine-tuned-abc.safetensors").read_text() == "weights"
    assert (found.model, found.limit, found.seed, found.sparsity) == ("cnn", 50, 3, "0.5")
    told = config(tmp_path / "out", start_from=tmp_path, limit=60)
    with pytest.raises(ConfigError, match="--limit 60: '.*' used 50; leave --limit out"):
        config_of_run(told, None)


@pytest.mark.parametrize(
    "made, asked, told",
    [
        ({"limit": None}, {"limit": 400}, "--limit 400: '.*' used all rows; leave --limit out"),
        ({"limit": 50, "seed": 0}, {"seed": 3}, "--seed 3: '.*' used 0; leave --seed out"),
        ({}, {"max_length": 9}, "--max-length 9: '.*' used its default; leave --max-length out"),
        ({"dataset": "toy"}, {"dataset": "digits"}, "--dataset digits: '.*' used toy; leave"),
    ],
)
def test_settings_that_are_not_those_of_the_run_are_named_as_options(made, asked, told, tmp_path):
    with runs.start("compress", {"model": "cnn", **made}, tmp_path):
        (tmp_path / "fine-tuned-abc.safetensors").write_text("weights")
    with pytest.raises(ConfigError, match=told):
        config_of_run(config(tmp_path / "out", start_from=tmp_path, **asked), None)
