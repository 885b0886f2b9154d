"""The precision and sensitivity jobs: what they write, and that they go on after a kill."""

import csv
import dataclasses
import json
import os
import re
import textwrap
import time
from dataclasses import replace

import pytest
import torch
from rich import get_console
from torch.distributions import Categorical, kl_divergence

from chop.actions.compress.ptq import quantize_layers
from chop.actions.compress.settings import CompressConfig
from chop.actions.search import precision, precision_rows, precision_subject
from chop.actions.search.job import get_settings, run_search
from chop.actions.search.nas import NasConfig
from chop.actions.search.precision import JOB, PrecisionConfig
from chop.actions.search.precision_subject import PrecisionSubject
from chop.actions.search.sensitivity import SensitivityConfig, measure_sensitivity
from chop.config import parse
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.problems.mixed_precision.held_out import HeldOutRows, HeldOutScore
from chop.problems.mixed_precision.layer_sensitivity import Sensitivity
from chop.problems.mixed_precision.warm_start import warm_start
from chop.report.charts.chart import LineChart
from chop.report.document import read_document
from chop.report.report import Note, show, write_report
from chop.runs import read_manifest
from chop.train import evaluate
from chop.train.evaluator import Evaluator
from chop.workloads.workload import Workload, raise_to_graph
from tests import programs
from tests.workloads import plain, rows


def workload():
    return Workload(plain(), "classifier", "points", *rows(), torch.device("cpu"), 1, 1e-3)


@pytest.fixture
def no_training(monkeypatch):
    monkeypatch.setattr("chop.workloads.load.load_workload", lambda config: workload())


def test_a_search_finds_formats_that_compress_builds(tmp_path, no_training):
    config = PrecisionConfig(out=tmp_path, widths="2,4,8", trials=14, search_rows=400)
    result = run_search(JOB, config)
    assert result.counts == {"measured": 14} and result.best.values["bits"] <= 4
    noted = json.loads((tmp_path / "precision" / "best.json").read_text())
    lines = (tmp_path / "precision" / "table.csv").read_text().splitlines()
    table = {row["formats"]: row for row in csv.DictReader(lines)}
    assert list(table)[:4] == ["float", "2.mse", "4.mse", "8.mse"]
    assert list(table)[4:] == ["no search (Fisher)", f"trial {result.best.number}"]
    best = table[f"trial {result.best.number}"]
    assert float(best["search accuracy"]) == noted["values"]["accuracy"]
    assert float(best["test accuracy"]) == noted["test_accuracy"]
    for name in ("accuracy", "formats", "best-so-far", "front", "importance"):
        assert (tmp_path / "precision" / f"{name}.svg").read_text().startswith("<?xml")
        assert (tmp_path / "precision" / f"{name}.png").stat().st_size > 1000
    page = read_document(tmp_path / "precision")
    first = page.tiles[0]
    assert first.label.startswith("accuracy of the best") and first.note.startswith("float")
    assert first.value == noted["test_accuracy"]
    formats, _ = page.tables
    assert {row[0] for row in formats.texts} == set(result.best.config)
    charts = [chart for chart in page.charts if isinstance(chart, LineChart)]
    marks = [mark for chart in charts for series in chart.series for mark in series.marks]
    chosen = "".join(f"\n{name}: {option}" for name, option in result.best.config.items())
    assert f"trial {result.best.number}{chosen}" in {mark.text for mark in marks}
    accuracy = next(chart for chart in charts if "every trial" in chart.title)
    points = {series.label: [(m.x, m.y) for m in series.marks] for series in accuracy.series}
    assert points["every trial"] == [
        (trial.values["bits"], trial.values["accuracy"]) for trial in result.measured
    ]
    (tested,) = points[f"trial {result.best.number} on the test rows"]
    assert tested == (result.best.values["bits"], noted["test_accuracy"])
    (map_of_layers,) = (chart for chart in page.charts if chart.kind == "heat")
    assert map_of_layers.title.endswith("format of each layer (width.fraction)")
    column = map_of_layers.columns.index(f"trial {result.best.number}")
    written = {
        row: texts[column]
        for row, texts in zip(map_of_layers.rows, map_of_layers.texts, strict=True)
    }
    assert written == dict(result.best.config)
    # The same model three times: as it is saved, as it is exported, as it was measured.
    assert noted["key"] == result.best.key
    saved = MaseGraph.from_checkpoint(tmp_path / "precision" / "best" / noted["key"] / "model")
    exported = JOB.export(config, result.best.config)
    built = quantize_layers(raise_to_graph(workload()), exported["layers"], workload(), 64)
    found = {evaluate(mg.model, rows()[1], batch_size=64) for mg in (saved, built)}
    assert found == {noted["test_accuracy"]}
    settings = {**exported, "out": tmp_path / "compressed"}
    assert (
        parse(CompressConfig, settings).layers["first"]["bias"]
        == exported["layers"]["first"]["bias"]
    )


@pytest.mark.long
@pytest.mark.usefixtures("unpainted")
def test_it_goes_on_and_can_be_rebuilt_from_its_settings(tmp_path, no_training):
    config = PrecisionConfig(
        out=tmp_path, widths="2,8", trials=3, goals=("loss", "bits"), sampler="tpe"
    )
    assert len(run_search(JOB, config).measured) == 3
    noted = json.loads(json.dumps(get_settings(config)))
    again = parse(PrecisionConfig, {**noted, "trials": 8})
    result = run_search(JOB, again)
    assert len(result.measured) == 8 and len({trial.key for trial in result.measured}) == 8
    assert result.front[0].values["loss"] <= result.front[-1].values["loss"]
    other = PrecisionConfig(
        out=tmp_path, widths="2,8", trials=9, rule="minmax", goals=("loss", "bits")
    )
    with pytest.raises(ConfigError, match="started with other"):
        run_search(JOB, other)


def test_a_search_chooses_inputs_and_weights_apart_by_their_divergence():
    config = PrecisionConfig(widths="2,4,8")
    assert [goal.name for goal in config.all_goals()] == ["kl", "bits"]
    found = PrecisionSubject(config, workload()).problem
    assert list(found.space.by_name)[:2] == ["first.data_in", "first.weight"]
    # More bits for inputs alone cost nothing of the budget and disturb the answers less.
    narrow = found.uniform("4.mse")
    wide = narrow | {name: "8.mse" for name in narrow if name.endswith("data_in")}
    before, after = (found.score(found.formats(chosen)) for chosen in (narrow, wide))
    assert after["kl"] < before["kl"] / 2
    assert found.space.cost(wide) == found.space.cost(narrow)
    together = PrecisionSubject(PrecisionConfig(widths="2,4,8", per="layer"), workload()).problem
    assert list(together.space.by_name) == ["first", "dead", "last"]


@pytest.mark.parametrize(
    ("goals", "budgets", "score"),
    [
        (("kl",), None, "kl"),
        (("accuracy",), None, "accuracy"),
        (("bits",), {"accuracy": 0.9}, None),
    ],
)
def test_a_pruner_is_told_what_is_searched_for_or_nothing(goals, budgets, score):
    config = PrecisionConfig(widths="2,8", goals=goals, budgets=budgets)
    assert PrecisionSubject(config, workload()).problem.goal == score


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"goals": ("acuracy",)}, "did you mean 'accuracy'"),
        ({"budgets": {"bit": 4}}, "did you mean 'bits'"),
        ({"budgets": {"accuracy": 0.9}, "goals": ()}, "expected at least one objective"),
        ({"formats": ("integr",)}, "did you mean 'integer'"),
        ({"widths": "8:2"}, "first <= last"),
        ({"widths": "nan"}, "'nan' is neither a number nor first:last:step"),
        ({"widths": "2:inf"}, "'2:inf' is neither a number nor first:last:step"),
        ({"widths": "4", "ranges": {"width": (4,)}}, "mean the same"),
        ({"operators": ("linaer",)}, "did you mean 'linear'"),
        ({"bias": "nonsense"}, "unknown number format"),
        ({"rule": "max"}, "rule"),
        ({"lr": 0.0}, "lr: got"),
        ({"lr": 0.1}, "lr: got 0.1, but trials are not trained: pass epochs"),
    ],
)
def test_settings_are_checked_before_anything_is_loaded(settings, message):
    with pytest.raises(ConfigError, match=message):
        PrecisionConfig(**settings)


@pytest.mark.usefixtures("unpainted")
@pytest.mark.long
def test_sensitivities_are_written_and_measured_once(tmp_path, monkeypatch):
    config = SensitivityConfig(out=tmp_path, widths="2,8", vectors=2)
    found = measure_sensitivity(config, workload())
    manifest = read_manifest(tmp_path)
    assert (manifest.kind, len(manifest.rows)) == ("search sensitivity", 6)
    assert len(found) == 6 and len((tmp_path / "points.jsonl").read_text().splitlines()) == 6
    kept = json.loads((tmp_path / "sensitivity.json").read_text())
    assert [row["kl"] for row in kept] == [row["kl"] for row in found]
    for metric in config.metrics:
        assert (tmp_path / f"{metric}.svg").is_file() and (tmp_path / f"{metric}.png").is_file()
    with monkeypatch.context() as patch:
        patch.setattr(Sensitivity, "measure", None)
        assert measure_sensitivity(config, workload()) == found
    only = SensitivityConfig(out=tmp_path, widths="2,8", metrics=("weight_error",))
    assert "accuracy" not in measure_sensitivity(only, workload())[0]
    with pytest.raises(ConfigError, match="did you mean 'kl'"):
        SensitivityConfig(metrics=("kl2",))


PROGRAM = """
    import sys, time
    from pathlib import Path
    from tests.actions.search.test_precision_jobs import *
    measure = Sensitivity.measure
    def slow(self, name, text):
        time.sleep(0.1)
        return measure(self, name, text)
    Sensitivity.measure = slow
    config = SensitivityConfig(out=Path(sys.argv[1]), widths="2,8", metrics=("mse",))
    measure_sensitivity(config, workload())
"""


@pytest.mark.long
@pytest.mark.usefixtures("unpainted")
def test_a_killed_sensitivity_job_goes_on(tmp_path):
    program, points = tmp_path / "slow.py", tmp_path / "points.jsonl"
    program.write_text(textwrap.dedent(PROGRAM))
    limit = time.monotonic() + 240
    with programs.started(program, tmp_path) as job:
        while time.monotonic() < limit and job.is_alive():
            if points.is_file() and len(points.read_text().splitlines()) >= 2:
                break
            time.sleep(0.01)
    done = points.read_text().splitlines()
    assert 2 <= len(done) < 6
    config = SensitivityConfig(out=tmp_path, widths="2,8", metrics=("mse",))
    found = measure_sensitivity(config, workload())
    unbroken = SensitivityConfig(out=tmp_path / "other", widths="2,8", metrics=("mse",))
    assert found == measure_sensitivity(unbroken, workload())
    lines = points.read_text().splitlines()
    assert lines[: len(done)] == done and len(lines) == 6


def test_settings_come_back_from_a_study_as_they_were():
    for kind in (PrecisionConfig, NasConfig):
        for field in dataclasses.fields(kind):
            # A setting that is None is not kept: None must be what it is by default.
            assert field.default is None or "None" not in str(field.type), field.name


@pytest.mark.parametrize(
    ("formats", "options"),
    [
        (("integer",), [f"{width}.mse" for width in range(2, 9)]),
        (("nvfp4",), ["nvfp4:block_size=32", "nvfp4"]),
        (("4.auto", "8.auto"), ["4.auto", "8.auto"]),
        (("float", "binary"), ["binary", "binary:scaling_factor=true", "float"]),
    ],
)
def test_every_format_can_be_searched_by_name(formats, options):
    assert PrecisionConfig(formats=formats).identity()["formats"] == options


def test_ranges_may_name_widths():
    config = PrecisionConfig(ranges={"width": (3, 5)})
    assert config.identity()["formats"] == ["3.mse", "5.mse"]


@pytest.mark.long
@pytest.mark.usefixtures("unpainted")
def test_a_search_says_that_it_measured_its_whole_space(tmp_path, no_training, capsys):
    config = PrecisionConfig(out=tmp_path, widths="2,8", trials=99, search_rows=64)
    result = run_search(JOB, config)
    size = PrecisionSubject(config, workload()).problem.space.size
    assert len(result.measured) == size < 99
    printed = " ".join(capsys.readouterr().out.split())
    assert f"; measured all {size} configurations; " in printed


@pytest.mark.usefixtures("unpainted")
def test_a_budget_that_nobody_meets_names_the_nearest(tmp_path, no_training, capsys):
    config = PrecisionConfig(out=tmp_path, widths="2,8", trials=4, budgets={"accuracy": 1.0})
    result = run_search(JOB, config)
    best = max(trial.values["accuracy"] for trial in result.measured)
    assert best < 1 and result.best is None and result.ranked[0].values["accuracy"] == best
    printed = " ".join(capsys.readouterr().out.split())
    assert f"the nearest, trial {result.ranked[0].number}, has" in printed
    assert f"accuracy {best:.4g}" in printed and not (tmp_path / "precision" / "best.json").exists()


@pytest.mark.usefixtures("unpainted")
@pytest.mark.parametrize("per", [pytest.param("layer", marks=pytest.mark.long), "operand"])
@pytest.mark.long
def test_a_budget_below_the_smallest_formats_is_refused_before_anything_is_tried(
    per, tmp_path, no_training
):
    told = {"out": tmp_path, "widths": "2,8", "trials": 4, "per": per}
    with pytest.raises(ConfigError, match="bits=0.5 cannot be met: .* in all layers it is 2"):
        run_search(JOB, PrecisionConfig(**told, budgets={"bits": 0.5}))
    assert not (tmp_path / "search.db").exists()
    smallest = run_search(JOB, PrecisionConfig(**told, budgets={"bits": 2.6})).best
    assert smallest is not None and smallest.values["bits"] <= 2.6


def with_validation(seen=False):
    train, test = rows()
    first, second = train.take(torch.arange(300)), train.take(torch.arange(300, 420))
    known = {"validation": second, "has_seen_validation": seen}
    return Workload(plain(), "net", "points", first, test, torch.device("cpu"), 1, 1e-3, **known)


def search(tmp_path, given=None, **settings):
    settings = {"widths": "2,4,8", "trials": 12, **settings}
    config = PrecisionConfig(out=tmp_path, **settings)
    given = given or with_validation()
    result = precision.prepare(config, given).run(config.trials, progress=False)
    report = precision.report(PrecisionSubject(config, given), result)
    show(*report.blocks, *map(Note, report.closing))
    write_report(report, config.folder)
    lines = (tmp_path / "precision" / "table.csv").read_text().splitlines()
    return result, {row["formats"]: row for row in csv.DictReader(lines)}


@pytest.mark.usefixtures("unpainted")
@pytest.mark.long
def test_trials_are_measured_on_rows_that_the_model_was_not_trained_on(tmp_path, capsys):
    given = with_validation()
    result, table = search(tmp_path, given)
    found = Evaluator(given.model, given.validation)
    assert float(table["float"]["search accuracy"]) == found.scores(found.logits())["accuracy"]
    note = (tmp_path / "precision" / "table.md").read_text().split("\n\n")[1]
    assert note.startswith("search: 120 validation rows. test: 400 test rows, used for reporting")
    assert "95 % Wilson score intervals" in note
    noted = json.loads((tmp_path / "precision" / "best.json").read_text())
    assert noted["search_rows"] == "120 validation rows" and noted["test_rows"] == 400
    low, high = noted["test_interval_95"]
    assert low < noted["test_accuracy"] < high and noted["compared"] in note
    # The float model's answers as they are, and the best's against them, by hand.
    best = PrecisionSubject(PrecisionConfig(widths="2,4,8"), given).problem
    with torch.no_grad():
        x = given.test.columns["x"].split(64)
        exact, changed = (
            torch.cat([best.model(c)(part) for part in x]) for c in (None, result.best.config)
        )
    expected = kl_divergence(Categorical(logits=exact), Categorical(logits=changed)).mean()
    assert noted["test_kl"] == pytest.approx(expected.item(), rel=1e-3)
    printed = " ".join(capsys.readouterr().out.split())
    assert "on 120 search rows" in printed and "on 400 test rows" in printed
    assert "its model is with" not in printed
    # The best model of a search with several machines may be on another one.
    (tmp_path / "precision" / "best").rename(tmp_path / "elsewhere")
    search(tmp_path, given)
    place = f"process {os.getpid()}), in precision/best/{noted['key']} of its --out"
    assert place in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (lambda: with_validation(seen=True), "120 validation rows taken from the training rows"),
        (lambda: replace(with_validation(), validation=rows()[1].take(torch.arange(99))), "300 tr"),
        (lambda: replace(workload(), train=rows()[0].take(torch.arange(40))), "40 training rows, "),
        (lambda: replace(workload(), train=rows()[0].take(torch.arange(1))), "1 training rows, "),
        (workload, "320 validation rows taken from the training rows, which the model may"),
    ],
)
def test_other_rows_are_told_as_what_they_are(given, told):
    split, taken, words = precision_rows.get_rows(
        given(), PrecisionConfig().search_rows, has_training=False
    )
    assert words.startswith(told) and words.startswith(f"{len(taken)} ")
    if "training rows, on which" in words:
        assert "rows are too few" in words and len(split.train) == len(given().train)


@pytest.mark.usefixtures("unpainted")
@pytest.mark.long
def test_only_what_was_chosen_without_them_has_test_numbers(tmp_path):
    result, table = search(tmp_path, goals=("kl", "bits"), trials=12)
    assert len(result.front) > 1
    first, *others = (table[f"trial {trial.number}"] for trial in result.front)
    assert first["test accuracy"] and first["test kl"] and first["95% interval"]
    for other in others:
        assert not other["test accuracy"] and not other["test kl"] and not other["95% interval"]
        assert other["search accuracy"]
    assert "choosing among the others" in (tmp_path / "precision" / "table.md").read_text()
    begun = [label for label in table if label.startswith("no search")]
    assert begun and all(", bits of " in label for label in begun)
    for label in begun:
        width = table[label.rpartition(" of ")[2]]
        assert float(table[label]["bits"]) <= float(width["bits"]) + 1e-9


def test_a_search_begins_with_what_needs_none(tmp_path):
    config = PrecisionConfig(out=tmp_path, widths="2,4,8", trials=100, budgets={"bits": 4.5})
    given = with_validation()
    search = precision.prepare(config, given)
    begun = json.loads((tmp_path / "precision" / "no-search.json").read_text())["found"]
    assert next(iter(begun)).startswith("no search (KL")
    found = search.run(5, progress=False)
    assert [trial.config for trial in found.trials][: len(begun)] == list(begun.values())
    uniform = found.trials[len(begun)].config
    assert set(uniform.values()) == {"4.mse"} and found.trials[len(begun)].values["bits"] <= 4.5
    assert min(t.values["kl"] for t in found.trials[: len(begun)]) < 0.5 * max(
        t.values["kl"] for t in found.trials
    )


def test_what_needs_no_search_is_measured_once(tmp_path, monkeypatch):
    config = PrecisionConfig(out=tmp_path, widths="2,8", trials=80)
    first = precision.prepare(config, with_validation()).start
    monkeypatch.setattr(precision_subject, "warm_start", None)
    assert precision.prepare(config, with_validation()).start == first
    (tmp_path / "precision" / "no-search.json").write_text("{")
    with pytest.raises(TypeError):
        precision.prepare(config, with_validation())


def test_loss_increases_are_measured_where_there_is_time_and_a_folder_to_keep_them(tmp_path):
    problem = PrecisionSubject(PrecisionConfig(widths="2,4,8"), with_validation()).problem
    goals = PrecisionConfig().all_goals()
    kinds = {
        evaluations: list(warm_start(problem, with_validation().train, goals, evaluations))
        for evaluations in (0, 8, 18)
    }
    assert kinds[0] == kinds[8] == ["no search (Fisher)"]
    assert kinds[18] in (["no search (KL, Fisher)"], ["no search (KL)", "no search (Fisher)"])


@pytest.mark.parametrize("quiet", [False, True])
def test_quiet_runs_say_nothing_of_the_warm_start(quiet, monkeypatch, capsys):
    problem = PrecisionSubject(PrecisionConfig(widths="2,8"), with_validation()).problem
    monkeypatch.setattr(get_console(), "quiet", quiet)
    capsys.readouterr()
    goals, train = PrecisionConfig().all_goals(), with_validation().train
    monkeypatch.setattr("chop.problems.mixed_precision.warm_start.fisher_loss_increases", refuse)
    assert list(warm_start(problem, train, goals, 1000)) == ["no search (KL)"]
    told = capsys.readouterr().out
    assert ("without Fisher information: no gradient" in told) != quiet
    assert ("options one at a time on" in told) != quiet


def refuse(*_):
    raise ConfigError("no gradient")


def test_what_a_search_gains_is_told_with_its_error():
    given = with_validation()
    found = PrecisionSubject(PrecisionConfig(widths="2,8"), given).problem
    test = HeldOutRows(found, Evaluator(found.layers.mg.model, given.test))
    wide, narrow = (test.score(found.uniform(text)) for text in ("8.mse", "2.mse"))
    verdict, told = test.compare(wide, narrow, "no search")
    right = [(x.predictions == given.test.labels).double() for x in (wide, narrow)]
    change = right[0] - right[1]
    error = 1.96 * change.std().item() / len(change) ** 0.5
    low, high = (
        float(x) / 100 for x in re.search(r"accuracy (\S+) to (\S+) points", told).groups()
    )
    assert low == pytest.approx(change.mean().item() - error, abs=0.005)
    assert high == pytest.approx(change.mean().item() + error, abs=0.005)
    assert low > 0
    assert verdict == ", better than no search in accuracy beyond the error, and better in kl"
    verdict, told = test.compare(narrow, wide, "no search")
    assert "accuracy -" in told and "(worse)" in told
    assert verdict == ", worse than no search in accuracy beyond the error, and worse in kl"
    assert test.compare(wide, wide, "no search (KL)")[0] == ", equal to no search (KL)"


@pytest.mark.parametrize(
    ("goal", "right", "divergence", "told"),
    [
        ("kl", 390, 0.1, "better than A in kl beyond the error, and better in accuracy"),
        ("kl", 200, 0.1, "better than A in kl beyond the error, but worse in accuracy"),
        ("kl", 390, 0.3, "worse than A in kl beyond the error, but better in accuracy"),
        ("kl", 200, 0.3, "worse than A in kl beyond the error, and worse in accuracy"),
        ("kl", 301, 0.1, "better than A in kl beyond the error"),
        ("kl", 390, 0.2, "not better than A in kl beyond the error, but better in accuracy"),
        ("kl", 200, 0.2, "not better than A in kl beyond the error, and worse in accuracy"),
        ("accuracy", 200, 0.1, "worse than A in accuracy beyond the error, but better in kl"),
        ("accuracy", 301, 0.3, "not better than A in accuracy beyond the error, and worse in kl"),
        ("bits", 390, 0.2, "better than A in accuracy beyond the error"),
    ],
)
@pytest.mark.sampled(2)
def test_the_goal_decides_what_is_better_and_other_numbers_are_told(goal, right, divergence, told):
    given = with_validation()
    found = PrecisionSubject(PrecisionConfig(widths="2,8"), given).problem
    test = HeldOutRows(found, Evaluator(found.layers.mg.model, given.test), goal)

    def score(right, divergence):
        predictions = test.held_out.labels.clone()
        predictions[right:] += 1
        return HeldOutScore(right / 400, None, predictions, torch.full((400,), divergence).double())

    verdict, sentence = test.compare(score(right, divergence), score(300, 0.2), "A")
    assert verdict == f", {told}" and sentence.endswith(f": {told}.")


def test_a_searched_loss_is_that_of_the_rows():
    given = with_validation()
    found = PrecisionSubject(PrecisionConfig(widths="2,8"), given).problem
    test = HeldOutRows(found, Evaluator(found.layers.mg.model, given.test), "loss")
    wide, narrow = (test.score(found.uniform(text)) for text in ("8.mse", "2.mse"))
    with torch.no_grad():
        answers = found.model(found.uniform("2.mse"))(given.test.columns["x"])
    mean = torch.nn.functional.cross_entropy(answers, given.test.labels).item()
    assert narrow.losses.mean().item() == pytest.approx(mean, rel=1e-4)
    assert len(narrow.losses) == 400
    verdict, told = test.compare(wide, narrow, "A")
    assert verdict.startswith(", better than A in loss beyond the error") and "; loss +" in told
