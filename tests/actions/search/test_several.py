"""Several searches by one command: their names and settings, what is compared, and resuming."""

import csv
import json
from statistics import mean, median

import pytest
import torch
from typer.testing import CliRunner

from chop.actions.search import precision_report
from chop.actions.search.job import _resume_note, find_job
from chop.actions.search.manage import resume_search
from chop.actions.search.nas import NasConfig
from chop.actions.search.precision import JOB, PrecisionConfig
from chop.actions.search.precision_subject import PrecisionSubject
from chop.actions.search.several import is_several, list_searches, run_several
from chop.base.notices import AdjustedWarning
from chop.cli.app import app
from chop.cli.names import known
from chop.errors import ConfigError
from chop.formats import Integer, get_format
from chop.problems.mixed_precision.candidates import DERIVED_FIELDS, WITH_BIAS, every_format
from chop.problems.mixed_precision.problem import PrecisionProblem
from chop.runs import read_manifest
from chop.search.location import storage_url
from chop.search.reading import load_search, study_names
from chop.workloads.workload import Workload
from tests.workloads import plain, rows

QUICK = {"widths": "2,8", "goals": ("accuracy",), "search_rows": 200, "keep": 0, "sampler": "tpe"}


@pytest.fixture
def quick(monkeypatch):
    """A model that is trained already, and no figures of single searches."""
    found = Workload(plain(), "classifier", "points", *rows(), torch.device("cpu"), 1, 1e-3)
    monkeypatch.setattr("chop.workloads.load.load_workload", lambda config: found)
    monkeypatch.setattr(precision_report, "precision_figures", lambda *told: {})


def per_format(out, **settings):
    told = {"formats": ("integer", "mxint", "binary"), "ranges": {"block_size": (4, 8)}}
    told |= {"per_format": True, "trials": 3}
    return PrecisionConfig(out=out, **{**QUICK, **told, **settings})


def test_seeds_and_samplers_are_searches_of_their_own(tmp_path):
    config = NasConfig(out=tmp_path, name="n", seed=5, seeds=2, samplers=("grid", "tpe"))
    found = list_searches(find_job("nas"), config)
    assert list(found) == ["grid", "tpe"]
    names = [(each.study, each.sampler, each.seed) for each in found["tpe"]]
    assert names == [("n-tpe-seed-5", "tpe", 5), ("n-tpe-seed-6", "tpe", 6)]
    assert all(not is_several(find_job("nas"), each) for each in found["grid"])
    assert not is_several(find_job("nas"), NasConfig(out=tmp_path))
    (alone,) = list_searches(JOB, PrecisionConfig(out=tmp_path, seeds=3)).values()
    assert [each.seed for each in alone] == [0, 1, 2]
    with pytest.raises(ConfigError, match="sampler 'tpee': did you mean 'tpe'"):
        NasConfig(out=tmp_path, samplers=("grid", "tpee"))
    with pytest.raises(ConfigError, match="samplers: 'grid' is given twice"):
        NasConfig(out=tmp_path, samplers=("grid", "grid"))
    with pytest.raises(ConfigError, match="'memory' stores nothing"):
        list_searches(JOB, PrecisionConfig(out=tmp_path, seeds=2, storage="memory"))


def test_an_interrupted_search_says_that_the_others_go_on(tmp_path):
    config = NasConfig(out=tmp_path)
    told = _resume_note(config, 2)
    assert told.startswith("finished trials are saved. Run the same command to resume, with 2")
    assert "2 more searches" in told and "1 more search to go" in _resume_note(config, 1)
    assert _resume_note(config, 0) == "no trial was finished. Run the same command to start again."


def test_a_format_takes_those_of_its_own_fields(tmp_path):
    found = list_searches(JOB, per_format(tmp_path, formats=("mxint", "integer", "mxint:width=4")))
    blocks, plain_integers, one = (group[0] for group in found.values())
    assert list(found) == ["mxint", "integer", "mxint:width=4"]
    assert dict(blocks.ranges) == {"block_size": (4, 8)} and blocks.widths == "2,8"
    assert not any(each.begins_warm for each in (blocks, one))  # curves begin with the sampler
    assert list_searches(JOB, per_format(tmp_path, warm_start=True))["binary"][0].begins_warm
    assert dict(plain_integers.ranges) == {} and one.widths is None
    assert one.study == "precision-mxint-width=4-tpe-seed-0"
    assert [len(each.candidates()) for each in (blocks, plain_integers, one)] == [4, 2, 1]
    both = list_searches(JOB, per_format(tmp_path, formats=("mxint",), samplers=("tpe", "random")))
    assert list(both) == ["mxint, tpe", "mxint, random"]


def test_all_formats_are_searched_within_no_budget_of_their_own(tmp_path):
    with pytest.warns(AdjustedWarning, match="formats: k_quant of 'all' cannot have these ranges"):
        config = per_format(tmp_path, formats=("all",), ranges={}, widths="8,16,32")
    groups = list_searches(JOB, config)
    # K-quants have 6 bits at most.
    fitting = tuple(name for name in every_format() if name != "k_quant")
    assert tuple(groups) == config.formats == fitting and len(groups) >= 15
    with pytest.raises(ConfigError, match="k_quant.width: got 32"):
        per_format(tmp_path, formats=("k_quant",), ranges={}, widths="8,16,32")
    assert [goal.name for goal in groups["binary"][0].all_goals()] == ["accuracy"]
    with pytest.raises(ConfigError, match="'all' includes every format"):
        per_format(tmp_path, formats=("all", "mxint"))
    # One search: 4 bits, unless no format has fewer.
    usual = {"out": tmp_path, "goals": ("accuracy",)}
    assert [goal.name for goal in PrecisionConfig(**usual).all_goals()] == ["accuracy", "bits"]
    wide = PrecisionConfig(**usual, widths="8,16,32", ranges={"frac_width": (2, 4, 8)}, per="layer")
    assert [goal.name for goal in wide.all_goals()] == ["accuracy"]
    by_hand = {f"{width}.{fraction}" for width in (8, 16, 32) for fraction in (2, 4, 8)}
    assert set(wide.candidates()) == by_hand


def by_hand(out, name, seeds):
    """The best accuracy of each search of a format."""
    studies = [f"precision-{name}-tpe-seed-{seed}" for seed in range(seeds)]
    found = [load_search(str(out), study)[1].measured for study in studies]
    return [max(trial.values["accuracy"] for trial in trials) for trials in found]


def names(out):
    """All studies."""
    return study_names(storage_url(None, out))


def table(out):
    lines = (out / "precision-compared" / "table.csv").read_text().splitlines()
    return {row["searches"]: row for row in csv.DictReader(lines)}


@pytest.mark.long
def test_every_format_is_searched_and_compared_and_goes_on_after_a_kill(
    tmp_path, quick, monkeypatch
):
    measure, calls = PrecisionProblem.measure, []

    def stopping(self, config, report):
        calls.append("mxint" in next(iter(self.options)))
        if calls[-1] and sum(calls) == 2:
            raise KeyboardInterrupt
        return measure(self, config, report)

    monkeypatch.setattr(PrecisionProblem, "measure", stopping)
    config = per_format(tmp_path, formats=("binary", "mxint"))
    with pytest.raises(KeyboardInterrupt) as stopped:
        run_several(JOB, config)
    assert "precision-mxint-tpe-seed-0" in stopped.value.__notes__[0]
    first = tmp_path / "precision-binary-tpe-seed-0"
    before = read_manifest(first)
    # The same command goes on, with another number of seeds too.
    told = "search precision --formats binary,mxint --per-format --goal accuracy --seeds 2 --keep 0"
    told += " --sampler tpe --widths 2,8 --ranges block_size=4,8 --search-rows 200 --trials 3 --out"
    done = CliRunner().invoke(app, [*told.split(), str(tmp_path)])
    assert done.exit_code == 0 and "precision-compared/best-so-far.svg" in done.output
    assert read_manifest(first) == before and list(table(tmp_path)) == ["binary", "mxint"]
    assert done.output.count("best: ") == 3 and done.output.count("Page of these results") == 1
    assert "activation_bits" not in done.output  # the table of each search is on its page
    assert "search kl" in (first / "table.md").read_text()
    for name, row in table(tmp_path).items():
        bests = by_hand(tmp_path, name, 2)
        assert float(row["best (mean)"]) == mean(bests) and float(row["best (least)"]) == min(bests)
        assert float(row["best (greatest)"]) == max(bests) and row["seeds"] == "2"
        noted = [
            json.loads((tmp_path / f"precision-{name}-tpe-seed-{s}" / "best.json").read_text())
            for s in range(2)
        ]
        assert float(row["test accuracy (mean)"]) == mean(x["test_accuracy"] for x in noted)
        assert float(row["bits of the best trial"]) == pytest.approx(
            mean(x["values"]["bits"] for x in noted), abs=0.01
        )
        assert row["choices"] == "6"  # inputs and weights of three layers
    varied = {name: (row["options"], row["varied"]) for name, row in table(tmp_path).items()}
    assert varied == {
        "mxint": ("4", "block_size 4, 8; width 2, 8"),
        "binary": ("2", "scaling_factor False, True"),
    }
    figure = (tmp_path / "precision-compared" / "best-so-far.svg").read_text()
    values = [row["search accuracy"] for row in before.rows if row["formats"] == "float"]
    told_of = ("mxint", "binary", "median and range of the seeds")
    assert all(f"<!-- {text} -->" in figure for text in told_of)
    assert f"<!-- float ({100 * median(values):.2f} %) -->" in figure
    # So does one search of them alone.
    assert len(resume_search(str(tmp_path), "precision-binary-tpe-seed-1", trials=4).measured) == 4
    found = [load_search(str(tmp_path), study)[1] for study in names(tmp_path)]
    assert sorted(len(result.measured) for result in found) == [3, 3, 3, 4]


def test_without_a_warm_start_the_sampler_begins(tmp_path, quick):
    config = PrecisionConfig(out=tmp_path, **QUICK, warm_start=False, budgets={}, trials=2)
    subject = PrecisionSubject(config)
    result = subject.search.run(2, progress=False)
    lines = precision_report.report(subject, result).rows
    best = f"trial {result.best.number}"
    assert [row["formats"] for row in lines] == ["float", best]
    uniform = subject.problem.uniform("8.mse")
    assert uniform not in [trial.config for trial in result.measured]


def test_help_has_the_values_of_each_format():
    told = {name: text for name, text in known("formats").items() if text[:1] not in ("", "=")}
    assert told.keys() == set(every_format())
    for name, text in told.items():
        kind = get_format(name)
        values = {
            field: " ".join(["", *", ".join(map(str, found)).split()])
            for field, found in kind.search_space.items()
            if field not in DERIVED_FIELDS
        }
        if "width" in values:
            values["width"] = ""
        if kind is Integer or issubclass(kind, WITH_BIAS):
            values["frac_width" if kind is Integer else "exponent_bias"] = " derived"
        assert text == "; ".join(f"{field}{found}" for field, found in values.items())
