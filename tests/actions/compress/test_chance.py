"""Float models that are no better than a constant answer stop a job, whatever the task."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import chop
from chop.actions.compress.job import compress
from chop.actions.compress.settings import CompressConfig
from chop.actions.emit.lower import lower
from chop.actions.emit.lower_settings import LowerConfig
from chop.actions.search.precision import prepare
from chop.actions.search.sensitivity import measure_sensitivity
from chop.actions.search.settings import PrecisionConfig, SensitivityConfig
from chop.actions.sweep.prune import prune_sweep
from chop.actions.sweep.quantize import quantize_sweep
from chop.actions.sweep.settings import PruneSweepConfig, QuantizeSweepConfig
from chop.base.notices import Assumption
from chop.cli.app import app
from chop.data.load import SPLIT_OFF
from chop.errors import ConfigError
from chop.train import TASKS, Metric
from chop.workloads.chance import check_float_model, warn_about_large_drop
from chop.workloads.workload import Workload


class Linear(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.fc = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.fc.weight.data.copy_(weight)

    def forward(self, x):
        return self.fc(x)


class Tokens(nn.Module):
    """Logits of the next token by the last one; `sharpness` 0 knows nothing."""

    def __init__(self, sharpness):
        super().__init__()
        self.table = nn.Embedding(8, 8)
        self.table.weight.data.copy_(sharpness * torch.eye(8).roll(1, 1))

    def forward(self, input_ids):
        return self.table(input_ids)


def get_rows(task, count=240):
    torch.manual_seed(3)
    x = torch.randn(count, 6)
    if task == "regression":
        return x, x[:, 0] + 0.1 * torch.randn(count)
    if task == "two numbers":
        return x, x[:, :2].clone()
    return x, (x[:, 0] > 0).long()


def texts(label_of=None):
    texts = [torch.arange(i, i + 9) % 8 for i in range(60)]
    return [{"input_ids": text, **({"labels": label_of(text)} if label_of else {})}
            for text in texts]  # fmt: skip


def split(rows):
    if isinstance(rows, tuple):
        half = len(rows[0]) // 2
        return tuple(part[:half] for part in rows), tuple(part[half:] for part in rows)
    return rows[:40], rows[40:]


ONE = torch.eye(6)[:1]
GOOD = {
    "classification": (Linear(torch.cat([-ONE, ONE])), get_rows("classification")),
    "regression": (Linear(ONE), get_rows("regression")),
    "two numbers": (Linear(torch.eye(6)[:2]), get_rows("two numbers")),
    "causal-lm": (Tokens(6.0), texts()),
    "token-classification": (Tokens(6.0), texts(lambda text: (text + 1) % 8)),
}
TASK_OF = {"two numbers": "regression"}
CASES = [
    *((kind, None) for kind in GOOD),
    *(("classification", m) for m in ("f1", "precision", "recall", "matthews_correlation")),
    *(("regression", m) for m in ("mse", "mae", "pearson")),
    *(("token-classification", m) for m in ("f1", "perplexity")),
    ("causal-lm", "accuracy"),
]


def workload_of(kind, metric=None, scale=1.0):
    model, rows = GOOD[kind]
    workload = Workload.of(
        model, *split(rows), task=TASK_OF.get(kind, kind), metric=metric, device="cpu"
    )
    for parameter in workload.model.parameters():
        parameter.data.mul_(scale)
    return workload


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind, metric", CASES)
def test_a_model_that_knows_nothing_is_refused_and_one_that_knows_is_not(kind, metric, capsys):
    config = LowerConfig()
    check_float_model(workload_of(kind, metric), config)
    none = workload_of(kind, metric, scale=0.0)
    with pytest.raises(ConfigError, match=r"no better than .*: a format that breaks .*--force"):
        check_float_model(none, config)
    capsys.readouterr()
    check_float_model(none, LowerConfig(force=True))
    assert "Continuing because of --force." in " ".join(capsys.readouterr().out.split())


def test_what_was_assumed_of_the_inputs_is_the_first_suspicion():
    workload = workload_of("classification", scale=0.0)
    assumed = [Assumption("column 'city' is not used"), Assumption("split off", SPLIT_OFF)]
    with pytest.raises(ConfigError, match=r"trains it. Assumed: column 'city' is not used.$"):
        check_float_model(replace(workload, assumptions=assumed), LowerConfig())
    with pytest.raises(ConfigError, match=r"the labels and their order \(--class-names\)"):
        check_float_model(replace(workload, class_names=("cat", "dog")), LowerConfig())


def test_the_sentence_has_the_numbers():
    told = (
        r"^float accuracy 25.00% \(95 % interval 18.11% to 33.44%\) on 120 test rows is no better "
        r"than always predicting the most common class, 75.00%"
    )
    model, x = GOOD["classification"][0], torch.ones(120, 6)  # always class 1
    rows = (x, (torch.arange(120) % 4 == 0).long())
    with pytest.raises(ConfigError, match=told):
        check_float_model(Workload.of(model, rows, rows), LowerConfig())


@pytest.mark.parametrize(
    "kind, drop, warned",
    [
        ("classification", 1, "--max-drop 1 allows 100.00 percentage points: a constant answer"),
        ("classification", 0.6, "--max-drop 0.6 allows 60.00 percentage points"),
        ("regression", 1, "is within that of float's 0.9"),
        ("causal-lm", 50, "--max-drop 0.01 allows 1.00%"),
        ("classification", 0.1, ""),
        ("regression", 0.5, ""),
        ("causal-lm", 0.5, ""),
    ],
)
def test_a_drop_that_a_constant_answer_keeps_is_warned_of(kind, drop, warned, capsys):
    workload = workload_of(kind)
    score = workload.score(workload.model, workload.test)
    capsys.readouterr()
    warn_about_large_drop(score, workload, drop)
    printed = " ".join(capsys.readouterr().out.split())
    assert warned in printed and bool(printed) == bool(warned)


def test_better_by_luck_is_not_better():
    workload = workload_of("classification")
    x, labels = torch.randn(40, 6), torch.arange(40) % 2
    x[:, 0] = torch.where(torch.arange(40) < 22, 1.0, -1.0) * (2 * labels - 1)  # 55 % are right
    few = Workload.of(workload.model, (x, labels), (x, labels))
    with pytest.raises(ConfigError, match="within its interval no better than .* 50.00%"):
        check_float_model(few, LowerConfig())


def test_rows_of_one_class_and_few_rows_are_told(capsys):
    model, (x, labels) = GOOD["classification"]
    one = Workload.of(model, (x, labels), (x[labels == 1], labels[labels == 1]))
    with pytest.raises(ConfigError, match="have one class, .* two classes in this split"):
        check_float_model(one, LowerConfig())
    check_float_model(Workload.of(model, (x, labels), (x[:60], labels[:60])), LowerConfig())
    assert "Few rows: 60 test rows; use at least 100" in " ".join(capsys.readouterr().out.split())


def test_metrics_of_ones_own(capsys):
    def refuses_constants(predictions, labels):
        if len(predictions.unique()) == 1:
            raise ValueError("one class")
        return 0.0

    predict = TASKS["classification"].metric.predict
    for metric in (Metric("mine", refuses_constants, predict), Metric("own", lambda p, y: 0.0,
                   lambda answers, labels: answers[:, 0])):  # fmt: skip
        check_float_model(workload_of("classification", metric), LowerConfig())
    undefined = Metric("rank", lambda p, y: float("nan") if len(p.unique()) == 1 else 0.9, predict)
    check_float_model(workload_of("classification", undefined), LowerConfig())
    worst = Metric("nan", lambda p, y: float("nan"), predict)
    with pytest.raises(ConfigError, match="the nan of the float model on the test rows is NaN"):
        check_float_model(workload_of("classification", worst), LowerConfig(force=True))


QUICK = {"formats": ("8.auto",)}
JOBS = {
    "compress": lambda out, it: compress(CompressConfig(out=out, **QUICK), it),
    "quantize": lambda out, it: quantize_sweep(QuantizeSweepConfig(out=out, widths="8"), it),
    "prune": lambda out, it: prune_sweep(PruneSweepConfig(out=out, sparsity="0.5"), it),
    "lower": lambda out, it: lower(LowerConfig(out=out), it),
    "precision": lambda out, it: prepare(PrecisionConfig(out=out, **QUICK), it),
    "sensitivity": lambda out, it: measure_sensitivity(SensitivityConfig(out=out, **QUICK), it),
}


@pytest.mark.parametrize("task, count", [("binary", 1), ("multilabel", 2)])
def test_a_sigmoid_at_the_end_is_named(task, count, caplog):
    x, _ = get_rows(task)
    labels = (x[:, :count] > 0).long().squeeze(1)
    layer = Linear(8 * torch.eye(6)[:count])
    check_float_model(Workload.of(layer, *split((x, labels)), task=task), LowerConfig())
    assert "sigmoid" not in caplog.text
    ended = Workload.of(nn.Sequential(layer, nn.Sigmoid()), *split((x, labels)), task=task)
    if task == "binary":
        with pytest.raises(ConfigError, match="from 0 to 1.* leave out the sigmoid"):
            check_float_model(ended, LowerConfig())
    else:
        check_float_model(ended, LowerConfig())  # F1 of all labels is better than of none
    assert "leave out the sigmoid" in caplog.text


@pytest.mark.parametrize("job", JOBS)
def test_every_job_stops(job, tmp_path):
    with pytest.raises(ConfigError, match="no better than always predicting the most common class"):
        JOBS[job](tmp_path, workload_of("classification", scale=-1.0))
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".md", ".svg", ".pt")]


@pytest.mark.parametrize(
    "command", ["compress", "lower", "emit", "sweep quantize", "sweep prune", "search precision"]
)
def test_every_command_has_the_option(command):
    from typer.testing import CliRunner

    told = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "200"}).output
    assert "--force" in told


def test_a_model_that_is_forced_through_is_told_in_the_report(tmp_path):
    x, y = torch.randn(200, 4), torch.randint(2, (200,))
    model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2))
    settings = {"formats": ("8.auto",), "bench_seconds": 0, "qat_epochs": 0, "keep_best": True}
    found = chop.compress(model, (x, y), out=tmp_path, force=True, **settings)
    assert any("no better than" in text for text in found.result["assumptions"])
    assert "Continuing because of force." in (tmp_path / "table.md").read_text()
