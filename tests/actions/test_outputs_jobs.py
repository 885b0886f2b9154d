"""Jobs on models with several outputs."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import chop
from chop.actions.search.settings import PrecisionConfig
from chop.cli.app import app
from chop.errors import ConfigError
from chop.train import fit
from chop.workloads.load import load_workload
from chop.workloads.settings import WorkloadConfig

NET = """
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 16)
        self.kind, self.age = nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, x):
        h = self.body(x).relu()
        return {"heads": {"kind": self.kind(h), "age": self.age(h)}, "hidden": h}
"""
TASK = "kind=classification,age=regression"


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """A table with two columns of labels, and a model that was trained on it."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    namespace = {"__name__": "net"}
    exec(NET, namespace)
    torch.manual_seed(0)
    model = namespace["Net"]()
    x = torch.randn(240, 4, generator=torch.Generator().manual_seed(0))
    kind, age = x[:, :3].argmax(1), 20 + x.sum(1)
    fit(model, (x, {"kind": kind, "age": age}), epochs=60, lr=2e-2)
    save_file(model.state_dict(), "net.safetensors")
    frame = pd.DataFrame(x.numpy(), columns=list("abcd"))
    frame.assign(kind=kind.numpy(), age=age.numpy()).to_csv("rows.csv", index=False)
    return model, (x, {"kind": kind, "age": age})


@pytest.mark.long
def test_commands_take_a_table_align_columns_labels(trained):
    common = f"--model net.py:Net --weights net.safetensors --dataset rows.csv --task {TASK}"
    run = "compress --formats 8.auto,2.auto --qat-epochs 1 --bench-seconds 0 --max-drop 0.05"
    ended = CliRunner().invoke(app, [*run.split(), *common.split(), "--out", "runs/c"])
    assert ended.exit_code == 0, ended.output
    result = json.loads(Path("runs/c/result.json").read_text())
    assert (result["task"], result["metric"]["name"]) == (TASK, "mean_score")
    first = result["rows"][0]
    assert set(first["outputs"]) == {"kind_accuracy", "age_r2"}
    assert first["mean_score"] == pytest.approx(sum(first["outputs"].values()) / 2)
    assert any("Several outputs: kind (classification, output" in x for x in result["assumptions"])
    assert any("Outputs without labels do not count: hidden" in x for x in result["assumptions"])
    again = ["evaluate", "runs/c", "--reference", "net.py:Net", "--out", "runs/e"]
    ended = CliRunner().invoke(app, again)
    assert ended.exit_code == 0 and "age_r2" in ended.output, ended.output
    found = json.loads(Path("runs/e/manifest.json").read_text())
    assert found["outcome"]["value"] == pytest.approx(result["saved"]["mean_score"], abs=1e-6)
    sweep = ["sweep", "quantize", "--widths", "8", "--qat-epochs", "1", *common.split()]
    ended = CliRunner().invoke(app, [*sweep, "--metric", "worst_score", "--out", "runs/s"])
    assert ended.exit_code == 0, ended.output
    assert "worst_score" in Path("runs/s/points.jsonl").read_text()


@pytest.mark.long
def test_a_search_without_goals_minimizes_the_loss(trained):
    command = "search precision --model net.py:Net --weights net.safetensors --dataset rows.csv"
    settings = f"--task {TASK} --trials 4 --widths 2,8 --sampler random --out runs/p".split()
    ended = CliRunner().invoke(app, [*command.split(), *settings])
    assert ended.exit_code == 0, ended.output
    assert "The goal is loss: kl needs classes" in ended.output
    best = json.loads(Path("runs/p/precision/best.json").read_text())
    assert best["values"]["bits"] <= 4 and "loss" in best["values"]


@pytest.mark.long
def test_python_takes_tasks_by_name_and_float64(trained, tmp_path):
    model, (x, labels) = trained
    settings = {"formats": ("8.auto",), "bench_seconds": 0, "max_drop": 0.05, "qat_epochs": 0}
    rows, named = (x.double(), labels), {"kind": "classification", "age": "regression"}
    found = chop.compress(model.double(), rows, task=named, out=tmp_path / "b", **settings)
    assert found.result["task"] == TASK and found.result["saved"] is not None
    assert found.model(x[:1].double())["heads"]["kind"].shape == (1, 3)


def test_columns_that_are_not_there(trained):
    common = "compress --model net.py:Net --weights net.safetensors --dataset rows.csv --task"
    for task, message in (
        (
            "kind=classification,years=regression",
            "no label column 'years': choose from: a, age",
        ),
        ("multioutput", "needs its label columns, each with a task, as in --task kind="),
    ):
        error = CliRunner().invoke(app, [*common.split(), task]).exception
        assert isinstance(error, ConfigError) and re.search(message, str(error)), error


@pytest.mark.long
def test_an_output_at_chance_is_told(trained, tmp_path):
    model, (x, labels) = trained
    noise = torch.randint(0, 3, (240,), generator=torch.Generator().manual_seed(3))
    rows = (x, {"kind": noise, "age": labels["age"]})
    found = chop.compress(model, rows, out=tmp_path / "a", bench_seconds=0, formats=("8.auto",))
    told = [text for text in found.result["assumptions"] if "no better than a constant" in text]
    assert told and all(text.startswith("Float kind_accuracy") for text in told)


def test_goals_of_a_search_may_be_metrics_of_an_output():
    config = PrecisionConfig(task=TASK, metric="age_mse", goals=("age_mse", "bits"))
    assert [goal.direction for goal in config.all_goals()] == ["minimize", "minimize"]
    config = PrecisionConfig(task=TASK, budgets={"kind_accuracy": 0.9})
    assert config.all_goals()[1].direction == "maximize"
    with pytest.raises(ConfigError, match="goals: unknown 'kind_mse'"):
        PrecisionConfig(task=TASK, goals=("kind_mse",))


@pytest.mark.long
def test_a_command_judges_by_the_metric_of_an_output(trained):
    common = {"model": "net.py:Net", "weights": "net.safetensors", "dataset": "rows.csv"}
    workload = load_workload(WorkloadConfig(**common, task=TASK, metric="age_mae"))
    assert (
        workload.task.metric.name == "age_mae"
        and workload.score(workload.model, workload.test).value < 0.5
    )
    with pytest.raises(ConfigError, match="unknown metric 'ages_mae': did you mean 'age_mae'"):
        load_workload(WorkloadConfig(**common, task=TASK, metric="ages_mae"))
    with pytest.raises(ConfigError, match="label_column: the task names the label columns"):
        load_workload(WorkloadConfig(**common, task=TASK, label_column="kind"))
