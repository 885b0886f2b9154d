"""`chop search precision` on models and settings that are unlike most."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from chop.actions.search import precision, precision_rows
from chop.actions.search.precision import PrecisionConfig
from chop.actions.search.precision_recipe import about_recipe
from chop.actions.search.precision_subject import PrecisionSubject
from chop.base.notices import collected_assumptions
from chop.errors import ConfigError
from chop.formats import Float, parse_format_string
from chop.problems.mixed_precision.problem import PrecisionProblem
from chop.report.report import Note, show, write_report
from chop.search import Goal
from chop.workloads.workload import Workload
from tests.networks import Made
from tests.workloads import graph, language, rows

pytestmark = pytest.mark.usefixtures("unpainted")
UNTRAINED = {"trials": 4, "widths": "3,8", "force": True}


def search(given, folder, **settings):
    config = PrecisionConfig(out=folder, **{**UNTRAINED, **settings})
    result = precision.prepare(config, given).run(config.trials, progress=False)
    report = precision.report(PrecisionSubject(config, given), result)
    show(*report.blocks, *map(Note, report.closing))
    write_report(report, config.folder)
    return result, json.loads((config.folder / "best.json").read_text())


def lines(folder):
    """A regression in one layer without a bias."""
    torch.manual_seed(0)
    x = torch.randn(300, 4)
    model = nn.Sequential(nn.Linear(4, 1, bias=False))
    return Workload.of(
        model, (x[:200], model(x[:200]).detach()), (x[200:], model(x[200:]).detach())
    )


def tokens():
    """A class for each token, those of some ignored."""
    torch.manual_seed(0)
    ids = torch.randint(16, (200, 6))
    labels = torch.where(ids > 12, -100, ids % 2)
    model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 2))
    rows = [{"input": i, "labels": y} for i, y in zip(ids, labels, strict=True)]
    return Workload.of(model, rows[:150], rows[150:], task="token-classification")


@pytest.mark.long
def test_one_layer_without_a_bias(tmp_path):
    result, noted = search(lines(tmp_path), tmp_path, goals=("loss",), budgets={"bits": 8})
    assert list(result.best.config) == ["0.data_in", "0.weight"]
    assert "test_kl" not in noted or noted["test_kl"] is None
    low, high = noted["test_interval_95"]
    assert low < noted["test_r2"] < high <= 1
    text = (tmp_path / "precision" / "table.md").read_text()
    assert "bootstrap intervals" in text and "test kl" not in text and "no search (" in text


@pytest.mark.parametrize("make", [language, tokens])
@pytest.mark.long
def test_answers_for_each_token(make, tmp_path):
    given = make()
    result, noted = search(given, tmp_path, budgets={"activation_bits": 8})
    assert result.best.values["kl"] >= 0 and noted["test_kl"] >= 0
    text = (tmp_path / "precision" / "table.md").read_text()
    assert "Tokens of a text are treated as independent." in text
    assert ("Wilson" in text) == (given.task.name == "token-classification")


def test_one_option_leaves_nothing_to_choose(tmp_path):
    given = lines(tmp_path)
    settings = {"formats": ("8.mse",), "widths": None, "goals": ("loss",), "budgets": {"bits": 9}}
    result, noted = search(given, tmp_path, **settings)
    assert len(result.measured) == 1 and set(noted["choices"].values()) == {"8.mse"}
    assert noted["compared"].startswith("The search result equals")


@pytest.mark.long
def test_a_budget_that_only_the_smallest_option_meets(tmp_path):
    result, noted = search(lines(tmp_path), tmp_path, goals=("loss",), budgets={"bits": 3})
    assert noted["choices"]["0.weight"] == "3.mse" and result.best.values["bits"] == 3


def classes(compute):
    """Three classes by a layer, and by a function of its answers."""
    torch.manual_seed(0)
    x, y = torch.randn(200, 4), torch.randint(3, (200,))
    model = Made(lambda m, x: compute(m.fc(x)), fc=nn.Linear(4, 3))
    return Workload.of(model, (x[:150], y[:150]), (x[150:], y[150:]))


def test_a_model_whose_answers_are_no_numbers_is_measured_all_the_same(tmp_path):
    given = classes(torch.log)  # NaN of what is negative
    result, noted = search(given, tmp_path)
    assert result.best.values["kl"] == float("inf") and noted["compared"] == ""
    assert "no search" not in (tmp_path / "precision" / "table.md").read_text()


def test_a_model_that_cannot_be_differentiated_is_searched_without_fisher(tmp_path, capsys):
    given = classes(torch.Tensor.detach)
    search(given, tmp_path, trials=40, widths="2,4,8")
    assert "no search (KL)" in (tmp_path / "precision" / "table.md").read_text()
    assert "without Fisher information: the loss has no gradient" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("acuracy", "goal 'acuracy': did you mean 'accuracy'"),
        ("kll", "goal 'kll': did you mean 'kl'"),
        ("bit", "goal 'bit': did you mean 'bits'"),
        ("hardware_cost", "goal 'hardware_cost': expected a function .* hardware cost"),
        ("latency_ms", "goal 'latency_ms': expected a function .* a measured time"),
    ],
)
def test_goals_that_are_not_measured_are_refused(name, message):
    problem = PrecisionProblem(graph(), *rows(), ranges={"width": (4,)})
    with pytest.raises(ConfigError, match=message):
        problem.check_goals([Goal("kl", "minimize"), Goal(name, "minimize")])
    known = ("kl", "loss", "accuracy", "bits", "bytes")
    problem.check_goals([Goal(each, "minimize") for each in known])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "The budget is bits=4, the default"),
        ({"budgets": {"bits": 8}}, ""),
        ({"goals": ("bits", "bytes")}, "The smallest model is the best, whatever its accuracy"),
        ({"goals": ("bits",), "budgets": {"bytes": 100}}, "The smallest model is the best"),
        ({"goals": ("bits",), "budgets": {"loss": 1.0}}, ""),
    ],
)
def test_default_and_missing_budgets_are_assumptions(settings, expected, tmp_path):
    with collected_assumptions() as assumed:
        precision.prepare(PrecisionConfig(out=tmp_path, **settings), lines(tmp_path))
    named = [x.text for x in assumed if x.text.startswith(("The budget is", "The smallest model"))]
    assert [each.startswith(expected) for each in named] == [True] * bool(expected)


def test_loss_stands_for_kl_of_numbers(tmp_path):
    with collected_assumptions() as assumed:
        search = precision.prepare(PrecisionConfig(out=tmp_path), lines(tmp_path))
    assert [goal.name for goal in search.goals] == ["loss", "bits"]
    texts = [each.text for each in assumed if each.text.startswith("The goal is loss")]
    assert len(texts) == 1 and "'regression'" in texts[0]


def test_kl_of_numbers_is_refused_beside_other_goals_and_as_a_budget(tmp_path):
    config = PrecisionConfig(out=tmp_path, goals=("kl", "bits"))
    with pytest.raises(ConfigError, match="'kl': choose from: loss, r2"):
        precision.prepare(config, lines(tmp_path))
    config = PrecisionConfig(out=tmp_path, goals=("loss",), budgets={"kl": 0.1})
    with pytest.raises(ConfigError, match="goal 'kl': "):
        precision.prepare(config, lines(tmp_path))


def texts():
    """A language model of one's own, which has no method of transformers' models."""
    torch.manual_seed(0)
    ids = torch.randint(16, (40, 6))
    rows = [{"input": row, "labels": row} for row in ids]
    model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16))
    return Workload.of(model, rows[:30], rows[30:], task="causal-lm")


@pytest.mark.long
def test_a_language_model_of_ones_own(tmp_path, monkeypatch):
    given = texts()
    result, _ = search(given, tmp_path, goals=("loss",), budgets={"bits": 8})
    assert result.best is not None
    monkeypatch.setattr(precision_rows, "ANSWER_BYTES", 4 * 6 * 16 * 5)
    assert len(precision_rows.fitting(given.train, given)) == 5


def test_a_best_that_is_float_says_so(tmp_path):
    config = PrecisionConfig(out=tmp_path, **UNTRAINED)
    chosen = {"fc": {"weight": Float(), "data_in": Float()}}
    found = SimpleNamespace(best=SimpleNamespace(number=0), recipes={})
    line = about_recipe(config, found, chosen)
    assert line == "no recipe: all layers of the best trial are float"
    chosen["fc"]["data_in"] = parse_format_string("mxint8")
    line = about_recipe(config, found, chosen)
    assert line.startswith("build the best model: chop search export ")
    assert line.endswith(" best.toml && chop compress --config best.toml")
    config = PrecisionConfig(out=tmp_path, storage=f"sqlite:///{tmp_path}/x.db", **UNTRAINED)
    line = about_recipe(config, found, chosen)
    assert f"chop search export {tmp_path}/x.db --name precision best.toml" in line
    line = about_recipe(PrecisionConfig(storage="memory", **UNTRAINED), found, chosen)
    assert "without --storage memory" in line and "chop search" not in line
