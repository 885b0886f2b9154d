"""`chop search precision --epochs`: each trial is trained before it is measured."""

import json
from dataclasses import replace

import pytest
import torch

from chop.actions.search import precision, precision_rows
from chop.actions.search.precision import PrecisionConfig
from chop.actions.search.precision_subject import PrecisionSubject
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.report.charts.best_so_far import best_so_far_charts
from chop.report.report import write_report
from chop.search import Pruned
from chop.train import evaluate, fit
from chop.train.evaluator import Evaluator
from tests.actions.search.test_precision_jobs import with_validation

SETTINGS = {"widths": "2,8", "goals": ("accuracy",), "epochs": 2, "lr": 1e-2}


def problem(**settings):
    return PrecisionSubject(PrecisionConfig(**{**SETTINGS, **settings}), with_validation()).problem


def test_a_trial_is_trained_from_the_same_weights_each_time():
    trained, rounded = problem(), problem(epochs=0, lr=None)
    rough = trained.uniform("2.mse")
    before = {name: x.clone() for name, x in trained.layers.mg.model.state_dict().items()}
    first = trained.measure(rough, lambda *_: None)
    trained.measure(trained.uniform("8.mse"), lambda *_: None)
    assert trained.measure(rough, lambda *_: None) == first
    assert first["loss"] < 0.9 * rounded.measure(rough, lambda *_: None)["loss"]
    after = trained.layers.mg.model.state_dict()
    assert all(torch.equal(x, after[name]) for name, x in before.items())
    # By hand: the graph of the formats, trained as `fit` trains.
    mg, given = rounded.graph(rough), with_validation()
    fit(mg.model, given.train, epochs=2, lr=1e-2, batch_size=64, seed=0)
    assert evaluate(mg.model, given.validation, batch_size=64) == first["accuracy"]
    assert first["bits"] == rounded.measure(rough, lambda *_: None)["bits"]


def test_a_pruner_hears_of_each_epoch_but_the_last():
    found, told = problem(epochs=3), []
    value = found.measure(found.uniform("2.mse"), lambda *pair: told.append(pair))["accuracy"]
    assert [step for step, _ in told] == [1, 2] and all(0 <= x <= 1 for _, x in told)
    assert value == found.measure(found.uniform("2.mse"), lambda *_: None)["accuracy"]

    def stop(step, value):
        raise Pruned("behind")

    with pytest.raises(Pruned):
        found.measure(found.uniform("8.mse"), stop)
    # What was cut short is not taken for a trained model.
    again = found.measure(found.uniform("8.mse"), lambda *_: None)
    assert again == problem(epochs=3).measure(found.uniform("8.mse"), lambda *_: None)


def test_plugs_see_the_trained_model():
    seen = []
    found = problem()
    found.custom_metrics = {"first": lambda mg: seen.append(mg) or 0.0}
    found.measure(found.uniform("2.mse"), lambda *_: None)
    assert seen == [found.graph(found.uniform("2.mse"))]


@pytest.mark.long
def test_the_kept_model_is_the_trained_one_and_accuracy_is_drawn_in_percent(
    tmp_path, monkeypatch, capsys
):
    drawn = []
    figures = "chop.report.search_figures.best_so_far_charts"
    monkeypatch.setattr(
        figures,
        lambda curves, **how: drawn.append((curves, how)) or best_so_far_charts(curves, **how),
    )
    given = with_validation()
    config = PrecisionConfig(out=tmp_path, **SETTINGS, trials=6, budgets={"bits": 4.5})
    subject = PrecisionSubject(config, given)
    result = subject.search.run(6, progress=False)
    write_report(precision.report(subject, result), config.folder)
    saved = MaseGraph.from_checkpoint(tmp_path / "precision" / "best" / result.best.key / "model")
    noted = json.loads((tmp_path / "precision" / "best.json").read_text())
    assert evaluate(saved.model, given.validation) == result.best.values["accuracy"]
    assert evaluate(saved.model, given.test) == noted["test_accuracy"]
    curves, how = drawn[0]
    (curve,) = curves[config.sampler]
    assert how["percent"] and "accuracy" in how["ylabel"]
    points = [point if isinstance(point, tuple) else tuple(point) for point in curve]
    assert max(y for _, y in points) == result.best.values["accuracy"] <= 1
    # The measured numbers are those of the search's rows.
    rows = Evaluator(saved.model, given.validation)
    assert rows.scores(rows.logits())["accuracy"] == points[-1][1]
    monkeypatch.setattr("chop.workloads.load.load_workload", lambda config: given)
    capsys.readouterr()
    exported = precision.export(config, result.best.config)
    told = " ".join(capsys.readouterr().out.split())
    assert "The file has the formats only" in told and str(tmp_path) in told
    assert exported["qat_epochs"] == 2 and exported["qat_lr"] == 1e-2


def test_rounding_only_and_training_are_different_searches(tmp_path):
    given = with_validation()
    untrained = PrecisionConfig(**{**SETTINGS, "epochs": 0, "lr": None}, out=tmp_path, trials=2)
    precision.prepare(untrained, given).run(2, progress=False)
    with pytest.raises(ConfigError, match="started with other problem: 'training' was None"):
        precision.prepare(PrecisionConfig(**SETTINGS, out=tmp_path), given).run(2, progress=False)


def test_trials_are_never_measured_on_what_they_train_on():
    given = with_validation()
    few = given.train.take(torch.arange(40))
    config = PrecisionConfig(**SETTINGS)
    few_rows = replace(given, train=few, validation=None)
    split, rows, about = precision_rows.get_rows(few_rows, config.search_rows, config.epochs > 0)
    assert len(split.train) == 32 and len(rows) == 8 and about.startswith("8 validation rows")
