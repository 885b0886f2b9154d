"""The job behind `chop search nas`, on few rows of digits."""

import csv
import json
import math
import os
import platform
from dataclasses import replace

import pytest
import torch

from chop import MaseGraph
from chop.actions.search.job import get_settings, rebuild, run_search
from chop.actions.search.nas import JOB, NasConfig, NasSubject, architectures, export
from chop.config import parse
from chop.data import load_dataset
from chop.errors import ConfigError
from chop.models import load_model
from chop.problems.nas.architecture import usual_fields
from chop.runs import read_manifest
from chop.train import evaluate, read_rows
from chop.workloads.workload import Workload

pytestmark = pytest.mark.usefixtures("unpainted")

FIELDS = {"num_hidden_layers": [1, 2], "hidden_size": [8, 12], "num_attention_heads": [2, 4]}
QUICK = {"model": "vit", "fields": FIELDS, "epochs": 1, "trials": 5, "sampler": "random"}


@pytest.fixture
def workload(monkeypatch):
    """An untrained model: an architecture search needs no weights."""
    data = load_dataset("digits", limit=120)
    rows = read_rows(data["train"]), read_rows(data["test"])
    found = Workload(load_model("vit"), "vit", "digits", *rows, torch.device("cpu"), 1, 1e-3)
    monkeypatch.setattr("chop.workloads.load.load_workload", lambda config: found)
    return found


def config(tmp_path, **settings):
    return parse(NasConfig, {**QUICK, "out": tmp_path, **settings})


def test_a_search_is_written_and_goes_on_where_it_was(tmp_path, workload, capsys):
    asked = config(tmp_path)
    result = run_search(JOB, replace(asked, trials=3))
    first = list(result.measured)
    result = run_search(JOB, asked)
    assert result.measured[: len(first)] == first and len(result.measured) == 5
    assert len({trial.key for trial in result.measured}) == 5
    noted = json.loads((tmp_path / "nas" / "best.json").read_text())
    best = result.best
    assert noted["values"] == best.values and noted["measured"] == 5
    # 4, 8 square layers and no pooler: 8 and 12 both divide by 2 and 4.
    assert noted["different"] == 2 * 2 * (2**4 + 2**8)
    model = MaseGraph.from_checkpoint(tmp_path / "nas" / "best" / best.key / "model").model
    assert sum(p.numel() for p in model.parameters()) == best.values["parameters"]
    assert noted["test_accuracy"] == evaluate(model, workload.test)
    # A fifth of the 120 training rows, and Wilson's formula by hand.
    assert noted["validation_rows"] == 24 and noted["test_rows"] == len(workload.test) == 120
    for kind, share in (("validation", best.values["accuracy"]), ("test", noted["test_accuracy"])):
        expected = wilson_by_hand(share, noted[f"{kind}_rows"])
        assert noted[f"{kind}_interval_95"] == pytest.approx(expected, abs=1e-4)
    choices = tmp_path / "nas" / "best" / best.key / "choices.json"
    assert json.loads(choices.read_text()) == best.config
    with (tmp_path / "nas" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    accuracies = [float(row["validation accuracy"]) for row in rows]
    assert accuracies == sorted(accuracies, reverse=True) and len(rows) == 5
    assert {"hidden_size", "layers replaced", "parameters"} <= rows[0].keys()
    names = {"best-so-far.svg", "best-so-far.png", "table.md"}
    artifacts = {artifact.path for artifact in read_manifest(tmp_path / "nas").artifacts}
    assert {*names, "best.json", f"best/{best.key}/model.pt"} <= artifacts
    assert names <= {file.name for file in (tmp_path / "nas").iterdir()}
    assert (tmp_path / "search.db").is_file()
    low, high = noted["validation_interval_95"]
    assert rows[0]["95% interval"] == f"{low:.2%} to {high:.2%}"
    note = (tmp_path / "nas" / "table.md").read_text().split("\n\n")[1]
    assert note.startswith("validation: 24 rows held out") and "test: 120 test rows" in note
    printed = " ".join(capsys.readouterr().out.split())
    assert f"measured 5 of {noted['different']:,}" in printed
    assert f"(95 % interval {low:.2%} to {high:.2%}) on 24 validation rows" in printed
    assert "training it again" not in printed and "its model is with" not in printed


def wilson_by_hand(share, count):
    z = 1.959964
    middle = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return [(middle - half) / (1 + z * z / count), (middle + half) / (1 + z * z / count)]


@pytest.mark.long
def test_a_best_model_that_a_worker_has_is_named_and_trained_again(tmp_path, workload, capsys):
    asked = config(tmp_path / "here", trials=2)
    run_search(JOB, asked)
    capsys.readouterr()
    (tmp_path / "here" / "nas" / "best").rename(tmp_path / "elsewhere")
    first = json.loads((tmp_path / "here" / "nas" / "best.json").read_text())
    run_search(JOB, asked)
    printed = " ".join(capsys.readouterr().out.split())
    assert "training it again to get its test accuracy" in printed
    place = f"(host {platform.node()}, process {os.getpid()}), in nas/best/{first['key']} of its"
    assert f"its model is with the worker that measured it {place}" in printed
    assert json.loads((tmp_path / "here" / "nas" / "best.json").read_text()) == first


@pytest.mark.long
def test_a_model_that_was_just_trained_is_the_one_that_is_loaded_later(tmp_path, workload):
    workload.model.config.problem_type = "single_label_classification"  # transformers sets it
    run_search(JOB, config(tmp_path, trials=1))
    workload.model.config.problem_type = None
    assert len(run_search(JOB, config(tmp_path, trials=2)).measured) == 2


@pytest.mark.long
def test_budgets_modes_and_scores(tmp_path, workload):
    asked = config(
        tmp_path,
        goals=["accuracy", "size_bytes"],
        budgets={"parameters": 4000},
        compression="compress",
        proxy="naswot",
        share=0.5,
        keep=0,
    )
    result = run_search(JOB, asked)
    assert len(result.measured) == 5
    assert all(t.values["size_bytes"] < 3 * t.values["parameters"] for t in result.measured)
    assert result.best is None or result.best.values["parameters"] <= 4000
    notes = [trial.note for trial in result.trials if trial.outcome == "infeasible"]
    assert all("it scores" in note for note in notes)
    assert not (tmp_path / "nas" / "best").exists()


@pytest.mark.long
def test_any_process_can_build_the_same_search(tmp_path, workload):
    asked = config(tmp_path, proxy="snip")
    job, again = rebuild({"name": "nas", "settings": json.loads(json.dumps(get_settings(asked)))})
    first, second = NasSubject(asked), NasSubject(again)
    assert job is JOB and first.search.space.choices == second.search.space.choices
    chosen = first.search.space.at(0)
    assert first.measure(chosen, print) == second.measure(chosen, print)
    assert architectures(asked, workload.model).num_distinct() == 2 * 2 * (2**4 + 2**8)


@pytest.mark.long
def test_what_does_not_fit_is_said_before_the_first_trial(tmp_path, workload):
    for settings, message in [
        ({"fields": {"num_layers": [2]}}, "did you mean 'num_hidden_layers'"),
        ({"goals": ["acuracy"]}, "did you mean 'accuracy'"),
        ({"budgets": {"params": 1}}, "did you mean 'parameters'"),
        ({"square_layers": ["Linear", "identity"]}, "did you mean 'Identity'"),
        ({"proxy": "synfow"}, "did you mean 'synflow'"),
        ({"compression": "comprss"}, "did you mean 'compress'"),
        ({"compression": "compress", "pass_args": {}}, "needs pass_args"),
    ]:
        with pytest.raises(ConfigError, match=message):
            NasSubject(config(tmp_path, **settings))
    with pytest.raises(ConfigError, match="load them with MaseGraph.from_checkpoint"):
        export(config(tmp_path), {})
    run_search(JOB, config(tmp_path, trials=1))
    with pytest.raises(ConfigError, match="started with other problem"):
        run_search(JOB, config(tmp_path, epochs=2))


def test_usual_fields_are_half_and_twice():
    assert usual_fields(load_model("vit").config) == {
        "num_hidden_layers": (1, 2, 4),
        "num_attention_heads": (2, 4, 8),
        "hidden_size": (24, 48, 96),
        "intermediate_size": (96, 192, 384),
    }


@pytest.mark.parametrize(
    ("model", "fields", "message"),
    [("mlp", None, "has no Hugging Face configuration"), ("vit", {"size": (1, 2)}, "size")],
)
def test_fields_are_checked_before_a_built_in_model_is_trained(model, fields, message, monkeypatch):
    monkeypatch.setattr("chop.workloads.load.load_workload", lambda config: pytest.fail("trained"))
    with pytest.raises(ConfigError, match=message):
        NasSubject(NasConfig(model=model, fields=fields))
