"""Jobs on models that a function of the user's judges, and a loss of the user's trains."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import chop
from chop import MaseGraph
from chop.actions.emit.lower import lower
from chop.actions.emit.lower_settings import LowerConfig
from chop.actions.evaluate.rows import judge_models
from chop.actions.search.job import run_search
from chop.actions.search.nas import JOB as NAS_JOB
from chop.actions.search.precision import JOB
from chop.actions.search.settings import NasConfig, PrecisionConfig
from chop.cli.app import app
from chop.errors import ConfigError, options_in_messages
from chop.problems.mixed_precision.problem import PrecisionProblem
from chop.workloads.workload import Workload, raise_to_graph

FILE = """
import torch
from torch import nn


class Boxes(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
        self.boxes, self.score = nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, x):
        h = self.body(x)
        return {"boxes": self.boxes(h), "score": self.score(h).squeeze(-1)}


X = torch.randn(60, 6, generator=torch.Generator().manual_seed(1))
with torch.no_grad():
    BOXES = Boxes()(X)["boxes"]


def error(model):
    assert isinstance(model, Boxes)
    return (model(X)["boxes"] - BOXES).abs().mean() + 1.0


def closeness(model):
    return 1 - (model(X)["boxes"] - BOXES).abs().mean(1)


def fails_when_rounded(model):
    if not torch.equal(model(X)["boxes"], BOXES):
        raise ValueError("no boxes")
    return 1.0


def nan(model):
    return float("nan")


def distance(output, labels):
    return (output["boxes"] - labels).pow(2).mean()
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A model, its functions and a table of inputs without labels."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(FILE)
    rows = torch.randn(40, 6, generator=torch.Generator().manual_seed(2)).tolist()
    lines = [",".join(f"c{i}" for i in range(6)), *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    namespace = {"__name__": "net"}
    exec(FILE, namespace)  # the same file, as a user's program has it
    return namespace


def called(*arguments):
    """What a command raises, as text."""
    return str(CliRunner().invoke(app, arguments).exception or "")


def compressed(files, evaluate, data=None, formats=("8.auto", "2.auto"), **more):
    more = {"bench_seconds": 0, "max_drop": 0.02, **more}
    data = files["X"] if data is None else data
    return chop.compress(files["Boxes"](), data, evaluate=evaluate, formats=formats, **more)


def test_a_model_of_no_task_is_compressed(files, capsys):
    found = compressed(files, files["closeness"])
    assert type(found.model).__name__ == "Boxes" and found.result["saved"]["format"].endswith(
        "8.auto"
    )
    again = MaseGraph.from_checkpoint("runs/compress/model").to_module(like=files["Boxes"]())
    value = files["closeness"](again).mean().item()
    assert found.result["saved"]["closeness"] == pytest.approx(value, abs=1e-6)
    shown = " ".join(capsys.readouterr().out.split())
    assert "closeness (95 % interval)" in shown and "on 60 rows against 1" in shown
    assert "by evaluate 'closeness'" in shown and "test rows" not in shown
    assert "No QAT: training needs a loss" in shown
    written = json.loads(Path("runs/compress/result.json").read_text())
    assert written["metric"] == {
        "name": "closeness",
        "higher_is_better": True,
        "evaluate": "closeness",
    }


def test_lower_numbers_may_be_better_and_have_a_name(files, capsys):
    found = compressed(
        files, files["error"], lower_is_better=True, metric="l1", max_drop=0.01, qat_epochs=0
    )
    rows = found.result["rows"]
    assert [row["l1"] for row in rows] == sorted(row["l1"] for row in rows)
    assert found.result["saved"]["format"].endswith("8.auto")
    shown = " ".join(capsys.readouterr().out.split())
    assert "l1 (lower is better)" in shown and "It gives one number, without a" in shown


def test_a_loss_of_the_user_trains_formats_back(files):
    data = files["X"], files["BOXES"]
    settings = {"qat_epochs": 30, "qat_lr": 1e-2, "formats": ("2.auto",), "keep_best": True}
    found = compressed(files, files["closeness"], data, loss=files["distance"], **settings)
    rounded, trained = (row["closeness"] for row in found.result["rows"][1:])
    assert found.result["rows"][2]["method"] == "QAT" and trained > rounded


def test_training_needs_a_loss(files):
    reason = "^qat_epochs: training needs a loss"
    with options_in_messages(False), pytest.raises(ConfigError, match=reason):
        compressed(files, files["closeness"], qat_epochs=3)


def test_a_format_on_which_the_function_fails_is_the_worst(files, capsys):
    found = compressed(files, files["fails_when_rounded"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "ValueError: no boxes. PTQ integer 8.auto is ranked last." in shown
    assert found.model is None and "No format is within 2.00% of float: " in shown
    json.loads(Path("runs/compress/result.json").read_text())


def test_a_float_model_without_a_number_stops(files):
    with pytest.raises(ConfigError, match="^evaluate 'nan': returned nan for the float model"):
        compressed(files, files["nan"])


def test_a_command_takes_functions_of_a_file(files):
    common = "compress --model net.py:Boxes --dataset rows.csv --bench-seconds 0 --formats 8.auto"
    judged = "--evaluate net.py:error --lower-is-better --metric l1"
    assert called(*common.split(), *judged.split()) == ""
    written = json.loads(Path("runs/compress/result.json").read_text())
    assert written["metric"] == {
        "name": "l1",
        "higher_is_better": False,
        "evaluate": "net.py:error",
    }
    # The function has rows of its own: those that the table lacks do not matter.
    assert not any("rows were given" in text for text in written.get("assumptions", []))
    for given, message in {
        "net.py:errors": "evaluate: 'net.py' has no 'errors': did you mean 'error'?",
        "nothere.py:f": "evaluate: 'nothere.py' does not exist.",
        "error": "evaluate: expected file.py:function, got 'error'.",
        "net.py:X": "evaluate: 'net.py:X' is not a function.",
    }.items():
        assert message in called(*common.split(), "--evaluate", given)


@pytest.mark.parametrize("name", ["evaluate", "loss"])
def test_a_function_that_a_file_names_does_not_run(files, name):
    with Path("net.py").open("a") as file:
        file.write("\nopen('ran', 'w').close()\n")
    with Path("run.toml").open("w") as file:
        file.write(f'model = "cnn"\n{name} = "net.py:error"\n')
    told = called("compress", "--config", "run.toml")
    assert f"pass --{name} net.py:error, or --trust-code" in told
    assert not Path("ran").exists()


@pytest.mark.long
def test_a_search_is_judged_by_a_function(files, capsys):
    config = PrecisionConfig(
        model="net.py:Boxes",
        dataset="rows.csv",
        evaluate="net.py:error",
        lower_is_better=True,
        widths=(4, 8),
        trials=4,
        budgets={"bits": 6.0},
    )
    assert config.goals == ("error",) and config.all_goals()[0].direction == "minimize"
    result = run_search(JOB, config)
    assert result.best.values["bits"] <= 6 and "kl" not in result.best.values
    least = min(t.values["error"] for t in result.measured if t.values["bits"] <= 6)
    assert result.best.values["error"] == least
    shown = " ".join(capsys.readouterr().out.split())
    assert "by evaluate 'net.py:error'" in shown and "one number, without a" in shown


def test_a_trial_on_which_the_function_fails_fails_alone(files):
    workload = Workload.of(files["Boxes"](), (files["X"], torch.zeros(60)), evaluate=files["error"])
    problem = PrecisionProblem(
        raise_to_graph(workload),
        (files["X"], torch.zeros(60)),
        (files["X"], torch.zeros(60)),
        formats=("8.auto",),
        evaluate=files["fails_when_rounded"],
    )
    from chop.search.objective import NotANumberError

    assert problem.score({}) == {"fails_when_rounded": 1.0}
    with pytest.raises(NotANumberError, match="no boxes"):
        problem.measure(problem.uniform("8.auto"), lambda *_: None)


def test_jobs_that_compare_answers_refuse_a_function(files, tmp_path):
    workload = Workload.of(files["Boxes"](), (files["X"], torch.zeros(60)), evaluate=files["error"])
    with pytest.raises(ConfigError, match="this job evaluates with the metric of a task"):
        lower(LowerConfig(out=tmp_path / "lower"), workload)


def test_a_model_with_a_task_keeps_it_for_training(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(80, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    y = model(x).argmax(1).detach()
    found = chop.compress(
        model,
        (x, y),
        evaluate=lambda model: model(x).argmax(1) == y,
        task="classification",
        formats=("2.auto",),
        qat_epochs=2,
        keep_best=True,
        bench_seconds=0,
        out=tmp_path,
    )
    assert [row["method"] for row in found.result["rows"]] == ["float", "PTQ", "QAT"]
    assert found.result["task"] == "classification"


def test_a_run_is_judged_again_by_the_function_that_the_command_names(files):
    asked = "--model net.py:Boxes --dataset rows.csv --formats 8.auto --bench-seconds 0"
    run = [*asked.split(), "--evaluate", "net.py:closeness", "--max-drop", "0.1", "--out", "runs/c"]
    assert CliRunner().invoke(app, ["compress", *run]).exit_code == 0
    again = ["evaluate", "runs/c", "--reference", "net.py:Boxes"]
    told = str(CliRunner().invoke(app, again).exception)
    assert "was evaluated with 'net.py:closeness'. chop runs code only if" in told
    command = "chop evaluate runs/c --reference net.py:Boxes --evaluate net.py:closeness"
    assert f"run {command}." in told
    for more in (["--evaluate", "net.py:closeness"], ["--trust-code"]):
        ended = CliRunner().invoke(app, [*again, *more, "--out", "runs/e"])
        assert ended.exit_code == 0, ended.output
    saved = json.loads(Path("runs/c/result.json").read_text())
    manifest = json.loads(Path("runs/e/manifest.json").read_text())
    assert manifest["outcome"]["metric"] == "closeness" and manifest["outcome"]["reference"] == 1
    assert manifest["outcome"]["value"] == pytest.approx(saved["saved"]["closeness"], abs=1e-6)
    other = [*again, "--evaluate", "net.py:error", "--lower-is-better", "--out", "runs/o"]
    assert CliRunner().invoke(app, other).exit_code == 0
    assert json.loads(Path("runs/o/manifest.json").read_text())["outcome"]["metric"] == "error"


@pytest.mark.long
def test_a_run_keeps_its_direction_and_needs_no_loss_to_be_judged_again(files, monkeypatch):
    asked = (
        "--model net.py:Boxes --dataset rows.csv --formats 8.auto --bench-seconds 0 --qat-epochs 0"
    )
    given = (
        "--evaluate net.py:error --lower-is-better --max-drop 0.5 --loss net.py:distance --out c"
    )
    ended = CliRunner().invoke(app, ["compress", *asked.split(), *given.split()])
    assert ended.exit_code == 0, ended.output
    judges = []
    monkeypatch.setattr(
        "chop.actions.evaluate.job.judge_models",
        lambda judged, judge, *rest: judges.append(judge) or judge_models(judged, judge, *rest),
    )
    again = [
        "evaluate",
        "c",
        "--reference",
        "net.py:Boxes",
        "--evaluate",
        "net.py:error",
        "--out",
        "e",
    ]
    ended = CliRunner().invoke(app, again)
    assert ended.exit_code == 0, f"{ended.output}{ended.exception}"
    assert [judge.metric.higher_is_better for judge in judges] == [False]


def test_accuracy_among_goals_of_architectures_is_the_number_of_the_function():
    config = NasConfig(
        evaluate="j.py:f1", goals=("accuracy", "parameters"), budgets={"accuracy": 0.5}
    )
    assert config.goals == ("f1", "parameters") and config.budgets == {"f1": 0.5}
    assert [goal.direction for goal in config.all_goals()][:2] == ["maximize", "minimize"]


@pytest.mark.parametrize(
    "asked",
    [
        ["quantize", "--widths", "8,4"],
        pytest.param(
            ["quantize", "--integer-bits", "3:4", "--fraction-bits", "4:5"], marks=pytest.mark.long
        ),
        ["prune", "--sparsity", "0.5", "--methods", "l1-norm"],
    ],
)
def test_sweeps_are_judged_by_a_function(files, asked):
    common = "--model net.py:Boxes --dataset rows.csv --evaluate net.py:closeness --out runs/s"
    ended = CliRunner().invoke(app, ["sweep", *asked, *common.split()])
    assert ended.exit_code == 0, ended.output
    points = Path("runs/s/points.jsonl").read_text().splitlines()
    assert all("closeness" in line for line in points)
    before = len(points)
    assert CliRunner().invoke(app, ["sweep", *asked, *common.split()]).exit_code == 0
    assert len(Path("runs/s/points.jsonl").read_text().splitlines()) == before
    Path("net.py").write_text(FILE + "\n# another function\n")
    assert CliRunner().invoke(app, ["sweep", *asked, *common.split()]).exit_code == 0
    assert len(Path("runs/s/points.jsonl").read_text().splitlines()) == 2 * before


NAS = """
import torch
from chop.data import load_dataset
from chop.train import evaluate, read_rows

ROWS = read_rows(load_dataset("builtin:digits", limit=100)["test"])


def wrong(model):
    assert not torch.is_grad_enabled()
    return 1.0 - evaluate(model, ROWS)
"""


@pytest.mark.long
def test_architectures_are_judged_by_a_function(files, capsys):
    Path("nas.py").write_text(NAS)
    asked = {
        "model": "vit", "limit": 100, "fields": {"hidden_size": [8, 12]}, "epochs": 1,
        "trials": 2, "sampler": "random", "evaluate": "nas.py:wrong", "lower_is_better": True,
        "out": Path("runs/n"),
    }  # fmt: skip
    result = run_search(NAS_JOB, NasConfig(**asked))
    best = min(result.measured, key=lambda trial: trial.values["wrong"])
    assert result.best.values == best.values and result.goals[0].name == "wrong"
    noted = json.loads(Path("runs/n/nas/best.json").read_text())
    assert noted["values"]["wrong"] == best.values["wrong"] and "test_accuracy" not in noted
    told = " ".join(capsys.readouterr().out.split())
    assert "Scored by evaluate 'nas.py:wrong': the reported numbers also chose the best" in told
    assert len(run_search(NAS_JOB, NasConfig(**asked)).measured) == 2
    with pytest.raises(ConfigError, match="started with other|other"):
        run_search(NAS_JOB, NasConfig(**{**asked, "evaluate": "net.py:error"}))


def test_sweeps_train_by_a_loss_alone(files):
    common = "--model net.py:Boxes --dataset rows.csv --evaluate net.py:closeness --widths 8"
    asked = ["sweep", "quantize", *common.split(), "--qat-epochs", "1"]
    told = str(CliRunner().invoke(app, asked).exception)
    assert "cannot be trained: pass --loss file.py:fn, --task or --distill, or 0 epochs" in told


@pytest.mark.long
def test_the_speed_of_a_run_without_labels_is_measured(files):
    asked = "--model net.py:Boxes --dataset rows.csv --evaluate net.py:closeness --formats 8.auto"
    run = ["compress", *asked.split(), "--bench-seconds", "0", "--qat-epochs", "0"]
    assert CliRunner().invoke(app, run).exit_code == 0
    again = "bench model runs/compress --no-compile --seconds 0.01 --batch 1 --trust-code"
    assert CliRunner().invoke(app, again.split()).exit_code == 0
