"""The job behind `chop search shape`, on a tiny Llama."""

import json
import multiprocessing
import os
import shlex
import signal
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from chop.actions.prune.job import prune
from chop.actions.prune.settings import PruneDecoderConfig
from chop.actions.search.job import run_search
from chop.actions.search.manage import show_search
from chop.actions.search.settings import ShapeConfig
from chop.actions.search.shape import JOB, ShapeSubject, export
from chop.errors import ConfigError
from chop.problems.shape import ShapeProblem
from chop.runs import read_manifest
from chop.workloads.workload import Workload
from tests.cli.test_shown_commands import parse
from tests.problems.test_shape import IDS, divergence, llama

pytestmark = pytest.mark.usefixtures("unpainted")

GRIDS = {"layers": (2, 3), "mlp_width": (32, 48, 64), "hidden_size": (28, 32), "kv_heads": (1, 2)}


@pytest.fixture
def workload(monkeypatch):
    calibration, test = IDS[:6], IDS[6:]
    rows = [{"input_ids": ids, "labels": ids} for ids in (calibration, test)]
    loaded = Workload.of(llama(), *rows, task="causal-lm", device="cpu")
    monkeypatch.setattr("chop.workloads.load.load_workload", lambda config: loaded)
    return loaded


def config(out, **more):
    own = {"max_params": 0.88, "least_share": 0.8, "calibration_rows": 6, "trials": 4}
    return ShapeConfig(out=out, device="cpu", **{**own, **GRIDS, **more})


def killed_at(number, given):
    """Runs a search whose process is killed in a measurement."""
    measure, calls = ShapeProblem.measure, []

    def killing(self, *arguments):
        calls.append(arguments)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return measure(self, *arguments)

    ShapeProblem.measure = killing
    ShapeSubject(given).search.run(given.trials, progress=False)


@pytest.mark.long
def test_the_best_shape_is_the_model_of_chop_prune(tmp_path, workload, capsys):
    given = config(tmp_path)
    result = run_search(JOB, given)
    printed = " ".join(capsys.readouterr().out.split())
    folder, best = tmp_path / "shape", result.best
    summary = json.loads((folder / "best.json").read_text())
    saved = folder / "best" / best.key / "model"
    model = AutoModelForCausalLM.from_pretrained(saved).eval()
    budget = int(0.88 * workload.model.num_parameters())
    assert summary["budget"] == budget and summary["measured"] == 4
    assert all(trial.values["parameters"] <= budget for trial in result.measured)
    assert model.num_parameters() == best.values["parameters"]
    assert summary["test_kl"] == pytest.approx(divergence(workload.model, model), rel=1e-4)
    labels = [row["model"] for row in summary["compared"]]
    assert labels[:2] == ["original", "best"] and "mlp_width alone" in labels
    assert all(row["parameters"] <= budget for row in summary["compared"][1:])
    assert f"To distill it: {summary['command']}" in printed
    program, command, *words = shlex.split(summary["command"])
    options = parse(command, words).params
    assert (program, command, options["model"], options["distill"]) == (
        "chop",
        "prune",
        "gpt-tiny",
        1,
    )
    sizes = {name: options[name] for name in (*GRIDS, "calibration_rows")}
    prune(PruneDecoderConfig(out=tmp_path / "prune", device="cpu", **sizes), workload)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "prune/model")
    for name, x in again.state_dict().items():
        assert torch.equal(x, model.state_dict()[name])
    files = {artifact.path for artifact in read_manifest(folder).artifacts}
    assert {"table.md", "table.csv", "front.svg", "best-so-far.svg", "report.html"} <= files
    assert f"best/{best.key}/model/model.safetensors" in files
    assert show_search(str(tmp_path)).best == best
    assert "num_hidden_layers" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="was started with other goals"):
        run_search(JOB, replace(given, max_params=0.87))


@pytest.mark.long
def test_a_killed_search_resumes(tmp_path, workload):
    given = config(tmp_path / "killed", keep=0)
    process = multiprocessing.get_context("fork").Process(target=killed_at, args=(2, given))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    unbroken, result = (
        ShapeSubject(each).search.run(4, progress=False)
        for each in (replace(given, out=tmp_path / "unbroken"), given)
    )
    assert [t.begun for t in result.measured] == [1, 2, 1, 1]
    pairs = zip(result.measured, unbroken.measured, strict=True)
    assert all((a.config, a.values) == (b.config, b.values) for a, b in pairs)


@pytest.mark.parametrize("budget", [1.0, 80, 1.5, 1000.5, float("inf")])
def test_a_budget_is_a_share_or_a_whole_number(budget, tmp_path):
    with pytest.raises(
        ConfigError, match="max_params: expected a share .* below 1, such as 0.8, or"
    ):
        config(tmp_path, max_params=budget)
    assert [config(tmp_path, max_params=x).budget(2000) for x in (0.5, 1000.0, 10**6)] == [
        1000,
        1000,
        10**6,
    ]


def test_refusals(tmp_path, workload):
    with pytest.raises(ConfigError, match="pruner: trials are not trained"):
        config(tmp_path, pruner="asha")
    with pytest.raises(ConfigError, match="goals: unknown"):
        config(tmp_path, goals=("accuracy",))
    with pytest.raises(ConfigError, match="expected a budget below"):
        ShapeSubject(config(tmp_path, max_params=10**6)).search  # noqa: B018
    with pytest.raises(ConfigError, match="chop prune gpt-tiny --layers 2 makes this one"):
        export(config(tmp_path), {"num_hidden_layers": "2"})
    points = torch.randn(20, 4), torch.randint(2, (20,))
    classifier = Workload.of(torch.nn.Linear(4, 2), points, points, device="cpu")
    with pytest.raises(ConfigError, match="chop search shape: expected a language model"):
        ShapeSubject(config(tmp_path), classifier).search  # noqa: B018
