"""Searches side by side: which are one curve, what curves are called, and what is refused."""

import csv

import numpy as np
import pytest
from typer.testing import CliRunner

from chop.actions.search.compare import compare_searches
from chop.base.notices import AdjustedWarning
from chop.cli.app import app
from chop.errors import ConfigError, UnavailableError
from chop.report.document import read_document
from chop.runs import read_manifest
from chop.search import Choice, Constraint, Goal, Search, SearchSpace
from chop.search.reading import load_search

SPACE = SearchSpace(tuple(Choice(f"fc{i}", {str(w): w for w in range(2, 9)}) for i in range(3)))
GOALS = (Goal("accuracy"), Constraint("bits", 6))


def measure(config, report):
    widths = np.array(list(SPACE.values(config).values()))
    kl = float(np.exp(-widths).sum())
    return {"accuracy": 0.98 - kl, "bits": float(widths.mean()), "kl": kl}


def begin(out, sampler="random", seed=0, trials=12, goals=GOALS, job=True, name="toy", **settings):
    """A search as `chop search` leaves it; with `job=False`, as a program does."""
    search = Search(SPACE, measure, goals, sampler=sampler, out=out, name=name, seed=seed)
    if job:
        told = {"model": "vit", "sampler": sampler, "seed": seed, "out": str(out), "keep": seed}
        search.store_job("precision", {**told, "trials": trials, **settings})
    search.run(until=trials, progress=False)
    search.close()
    return str(out)


def table(out):
    return list(csv.DictReader((out / "table.csv").read_text().splitlines()))


def best_so_far(folder, count, name=None):
    """By hand: the best accuracy within the budget among the first `count` that were measured."""
    trials = load_search(folder, name)[1].measured[:count]
    return max(t.values["accuracy"] for t in trials if t.values["bits"] <= 6)


@pytest.fixture(scope="module")
def six(tmp_path_factory):
    """Two samplers, three seeds each."""
    folder = tmp_path_factory.mktemp("searches")
    return [
        begin(folder / f"{sampler}-{seed}", sampler, seed, trials=30)
        for sampler in ("random", "tpe")
        for seed in range(3)
    ]


@pytest.mark.long
def test_seeds_are_one_curve_and_samplers_two(six, tmp_path):
    rows = compare_searches(six, out=tmp_path)
    manifest = read_manifest(tmp_path)
    assert (manifest.kind, manifest.state) == ("search compare", "finished")
    assert list(manifest.rows) == rows and manifest.settings["searches"] == six
    artifacts = {"best-so-far.svg", "best-so-far.png", "table.csv", "table.md"}
    artifacts |= {"trials.svg", "trials.png", "report.html", "report.json"}
    assert {artifact.path for artifact in manifest.artifacts} == artifacts
    assert (
        [row["searches"] for row in rows]
        == ["random", "tpe"]
        == [row["searches"] for row in table(tmp_path)]
    )
    for row, group in zip(table(tmp_path), (six[:3], six[3:]), strict=True):
        assert (row["seeds"], row["measured"], row["best at 50"]) == ("3", "30", "")
        bests = [best_so_far(folder, 30) for folder in group]
        found = [float(row[f"best ({name})"]) for name in ("median", "least", "greatest")]
        assert found == [np.median(bests), min(bests), max(bests)]
        at_25 = np.median([best_so_far(folder, 25) for folder in group])
        assert float(row["best at 25"]) == at_25 <= found[0]
        seconds = [sum(t.seconds or 0 for t in load_search(folder)[1].trials) for folder in group]
        assert float(row["seconds"]) == pytest.approx(np.median(seconds), abs=0.06)
    text = (tmp_path / "best-so-far.svg").read_text()
    told = ("random", "tpe", "vit on digits: best accuracy so far", "median and range of the seeds")
    told += ("30 trials, within bits at most 6",)
    assert all(f"<!-- {label} -->" in text for label in told)
    assert (tmp_path / "best-so-far.png").stat().st_size > 1000
    spelled = (tmp_path / "table.md").read_text().splitlines()
    assert f"{rows[0]['best (median)']:.2%}" in spelled[2] and spelled[2].endswith(" |")


def test_every_trial_of_all_searches_is_a_grey_point_in_bits(tmp_path):
    folders = [begin(tmp_path / name, name, epochs=1) for name in ("random", "grid")]
    compare_searches(folders, out=tmp_path / "out")
    best, trials = read_document(tmp_path / "out").charts
    printed = (tmp_path / "out/table.md").read_text()
    assert "best (median)" in printed and "best (least)" not in printed
    assert "best at" not in printed and "best (least)" in table(tmp_path / "out")[0]
    assert best.title == (
        "vit on digits: best accuracy so far\n12 trials, each trained for 1 epoch, "
        "within bits at most 6"
    )
    assert trials.title == "vit on digits: accuracy against bits per weight, every trial"
    results = [load_search(folder)[1] for folder in folders]
    grey, *bests = trials.series
    measured = [trial for result in results for trial in result.measured]
    assert [(m.x, m.y) for m in grey.marks] == [
        (trial.values["bits"], trial.values["accuracy"]) for trial in measured
    ]
    assert [m.text.splitlines()[0] for m in grey.marks] == [f"trial {t.number}" for t in measured]
    assert [series.label for series in bests] == ["best of random", "best of grid"]
    for series, result in zip(bests, results, strict=True):
        (mark,) = series.marks
        assert (mark.x, mark.y) == (result.best.values["bits"], result.best.values["accuracy"])
    # The axis has the numbers of trials that tables have: the last point is the last trial's.
    last = [result.best_by_trial()[-1][0] for result in results]
    assert [int(series.marks[-1].x) for series in best.series] == last


def test_searches_without_bits_have_no_figure_of_them(tmp_path):
    folder = begin(tmp_path / "a")
    compare_searches([folder], goal="bits", out=tmp_path / "bits")
    assert not (tmp_path / "bits/trials.svg").exists()
    assert (tmp_path / "bits/best-so-far.svg").exists()


@pytest.mark.long
def test_curves_are_labeled_by_the_settings_that_differ(tmp_path):
    folders = [
        begin(tmp_path / "a", compression="none", budgets={"bits": 6}),
        begin(tmp_path / "b", compression="compress", budgets={"bits": 5}, seed=1),
        begin(tmp_path / "c", "grid", compression="compress", pruner="asha"),
    ]
    rows = compare_searches(folders, out=tmp_path / "out")
    assert [row["searches"] for row in rows] == [
        "random, compression=none, budgets.bits=6, no pruner",
        "random, compression=compress, budgets.bits=5, no pruner",
        "grid, compression=compress, no budgets.bits, pruner=asha",
    ]


@pytest.mark.long
def test_equal_searches_are_told_apart_by_their_place(tmp_path):
    same = [begin(tmp_path / name, seed=3) for name in ("a", "b")]
    other = begin(tmp_path / "c", "tpe")
    rows = compare_searches([*same, other], out=tmp_path / "out")
    assert [row["searches"] for row in rows] == [
        f"toy ({same[0]})",
        f"toy ({same[1]})",
        "tpe",
    ]
    assert [row["seeds"] for row in rows] == [1, 1, 1]


@pytest.mark.long
def test_how_long_a_search_ran_makes_no_other_curve_unless_nothing_else_does(tmp_path):
    folders = [begin(tmp_path / f"r{n}", seed=n, trials=10 + n, workers=n + 1) for n in range(2)]
    rows = compare_searches([*folders, begin(tmp_path / "tpe", "tpe")], out=tmp_path / "out")
    found = [(row["searches"], row["seeds"], row["measured"]) for row in rows]
    assert found == [("random", 2, "10 to 11"), ("tpe", 1, 12)]
    longer = begin(tmp_path / "longer", seed=0, trials=15)
    rows = compare_searches([folders[0], longer], out=tmp_path / "out")
    assert [row["searches"] for row in rows] == [
        "random, trials=10, workers=1",
        "random, trials=15, no workers",
    ]


@pytest.mark.long
def test_searches_of_programs_go_by_study_or_label(tmp_path):
    out = tmp_path / "db"
    for seed in range(2):
        begin(out, "random", seed, job=False, name=f"random, seed {seed}")
    begin(out, "tpe", job=False, name="tpe")
    names = ["random, seed 0", "random, seed 1", "tpe"]
    rows = compare_searches([out], out=tmp_path / "a")
    assert [row["searches"] for row in rows] == names
    rows = compare_searches([out], labels=["random", "random", "ours"], out=tmp_path / "b")
    assert [(row["searches"], row["seeds"]) for row in rows] == [("random", 2), ("ours", 1)]
    bests = [best_so_far(str(out), 12, name) for name in names[:2]]
    assert rows[0]["best (median)"] == np.median(bests)
    picked = compare_searches([f"{out}:tpe", f"{out}/search.db:random, seed 1"], out=tmp_path)
    assert [row["searches"] for row in picked] == ["tpe", "random, seed 1"]
    assert compare_searches([out], name="tpe", out=tmp_path)[0]["searches"] == "tpe"
    (out / "tpe").mkdir(exist_ok=True)  # where a job writes what it found
    assert compare_searches([out / "tpe"], out=tmp_path)[0]["searches"] == "tpe"


@pytest.mark.long
def test_another_number_can_be_compared(six, tmp_path):
    rows = compare_searches(six[2:4], out=tmp_path, goal="kl")
    trials = load_search(six[2])[1].measured
    assert rows[0]["best (median)"] == min(t.values["kl"] for t in trials if t.values["bits"] <= 6)
    assert "<!-- best kl so far -->" in (tmp_path / "best-so-far.svg").read_text()
    with pytest.raises(ConfigError, match="goal 'acuracy': did you mean 'accuracy'"):
        compare_searches(six, out=tmp_path, goal="acuracy")
    with pytest.raises(ConfigError, match="random-0:toy did not measure 'loss'"):
        compare_searches(six, out=tmp_path, goal="loss")


def test_what_cannot_be_compared_is_refused(six, tmp_path):
    other = begin(tmp_path / "kl", goals=(Goal("kl", "minimize"),))
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match=r"different goals, accuracy .*, kl \(minimize\) in .*kl"):
        compare_searches([six[0], other], out=out)
    with pytest.raises(UnavailableError, match="no search found in .*none"):
        compare_searches([six[0], tmp_path / "none"], out=out)
    with pytest.raises(ConfigError, match="random-0:toy is given twice"):
        compare_searches([six[0], f"{six[0]}/search.db"], out=out)
    with pytest.raises(ConfigError, match="expected 6, one for each search, or 2, .* got 3"):
        compare_searches(six, labels=["a", "b", "c"], out=out)
    with pytest.raises(ConfigError, match="study 'toyy': did you mean 'toy'"):
        compare_searches([f"{six[0]}:toyy"], out=out)
    with pytest.raises(ConfigError, match="at least one search"):
        compare_searches([], out=out)
    assert not out.exists()


@pytest.mark.long
def test_a_search_beyond_its_budgets_is_left_out_and_named(six, tmp_path):
    goals = (Goal("accuracy"), Constraint("bits", 0.5))
    beyond = begin(tmp_path / "beyond", goals=goals)
    with pytest.warns(AdjustedWarning, match="beyond:toy is omitted: no trial has a finite value"):
        rows = compare_searches([six[0], beyond], labels=["a", "b"], out=tmp_path)
    assert [row["searches"] for row in rows] == ["a"]
    with pytest.raises(ConfigError, match="no search has a trial with a finite value"):
        compare_searches([beyond], out=tmp_path)


@pytest.mark.long
def test_a_search_without_a_finite_number_is_left_out(six, tmp_path):
    search = Search(
        SPACE, lambda config, report: {"accuracy": -np.inf}, GOALS[0], out=tmp_path / "i"
    )
    search.run(until=2, progress=False)
    search.close()
    with pytest.warns(AdjustedWarning, match="i:search is omitted: no trial has a finite value"):
        rows = compare_searches([six[0], tmp_path / "i"], out=tmp_path)
    assert [row["searches"] for row in rows] == ["random"]


def test_the_command_compares(six, tmp_path):
    out = tmp_path / "out"
    told = ["search", "compare", *six, "--out", str(out), "--labels", "a, b", "--goal", "kl"]
    done = CliRunner().invoke(app, told)
    assert done.exit_code == 0, done.output
    assert [row["searches"] for row in table(out)] == ["a", "b"]
    first, second = sorted(table(out), key=lambda row: float(row["best (median)"]))
    said = " ".join(done.output.split())
    assert f"Best KL divergence (median over the seeds): {first['searches']} " in said
    assert f", {second['searches']} {float(second['best (median)']):.3g}" in said
    assert str(out / "best-so-far.svg") in done.output.replace("\n", "")
    missing = CliRunner().invoke(app, ["search", "compare", str(tmp_path / "none")])
    assert isinstance(missing.exception, UnavailableError)
