"""Comparison of searches: best-so-far curves over trials, with bands over seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from chop.actions.job import Job, load_nothing, run_job
from chop.errors import MOST_NAMES, ConfigError, check_known, enumerate_names
from chop.report.charts.accuracy import Curve, Trials, accuracy_charts
from chop.report.charts.best_so_far import Run, best_so_far_charts, value_at
from chop.report.measured import MeasuredTable, report_of_tables
from chop.report.report import Writer, figure_files
from chop.report.search_figures import about_trial, within
from chop.report.words import in_words
from chop.search import Goal, TrialRecord
from chop.search.comparison import Compared, build_curves, get_title, judged, read_compared
from chop.search.objective import Direction, select_objectives
from chop.train import TASKS, Metric
from chop.train.tasks import share_metrics

OUT = Path("runs/search-compare")
BITS = "bits"
"""Value on the x axis of the figure of all trials."""
COUNTS = (25, 50, 100)
"""Trial counts at which the table gives the best value."""


Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Settings:
    """Settings of a comparison for its manifest, see `compare_searches`."""

    searches: tuple[str | Path | tuple[str, str], ...]
    name: str | None
    labels: tuple[str, ...]
    goal: str | None
    out: Path


def compare_searches(
    searches: Sequence[str | Path | tuple[str, str]],
    *,
    out: str | Path = OUT,
    name: str | None = None,
    labels: Sequence[str] = (),
    goal: str | None = None,
    baselines: Mapping[str, float] | None = None,
    title: str | None = None,
    columns: Mapping[str, Mapping[str, Any]] | None = None,
) -> Rows:
    """Overlays the best-so-far curves of several searches, finished or not.

    Searches of `chop search` whose settings differ only in the seed form one curve: their median,
    and a band from minimum to maximum. Each other search has its own curve, labeled by the
    settings that differ. Searches of Python programs store no settings: each has its own curve,
    named by its study, unless `labels` groups several.

    Args:
        searches: output folders, files or URLs. A suffix `:NAME`, or a pair with NAME, selects a
            study of that storage; the default is every study.
        out: folder for `best-so-far` (.svg, .png), `table` (.csv, .md) and `manifest.json`; if
            trials have bits, also for `trials` (.svg, .png), the goal against bits.
        name: study for storages that are given without one.
        labels: one per search, with equal labels forming a curve; or one per curve.
        goal: number to compare, which every search measured. Default: the first objective of all.
        baselines: values of horizontal lines, by label.
        title: title of the figure. Default: model and data, if they are the same.
        columns: further table columns by curve label; names that begin with `test` are values of
            the goal.
    Returns: the rows of the table, one per curve: seeds, trials, measured configurations, the
        best, the best after 25, 50 and 100 trials, and seconds per search. Values are medians over
        seeds; the best also has mean and range.
    Raises:
        UnavailableError: if a storage does not exist.
        ConfigError: if goals differ, labels do not fit, or there is no search with a trial within
            its budgets.
    """
    compared = [each for search in searches for each in read_compared(search, name)]
    chosen = _common_goal(compared, goal)
    curves = build_curves([judged(each, chosen) for each in compared], labels)
    series = {key: [each.result.best_so_far() for each in group] for key, group in curves.items()}
    by_trial = {k: [each.result.best_by_trial() for each in group] for k, group in curves.items()}
    further = columns or {}
    rows = [
        {**_row(label, group, series[label]), **further.get(label, {})}
        for label, group in curves.items()
    ]
    plotted = [each for group in curves.values() for each in group]
    values = [value for group in series.values() for one in group for _, value in one]
    percent = chosen.name in share_metrics() and all(abs(value) <= 1 for value in values)
    metric = dataclasses.replace(TASKS["classification"].metric, is_share=percent)
    numbers = {key: metric for key in rows[0] if key.startswith(("best", "test"))}
    numbers["seconds"] = dataclasses.replace(metric, is_share=False)
    heading = title if title is not None else get_title(plotted, _data_name)
    caption = f"{heading}: best {in_words(chosen.name)} of each search"
    table = MeasuredTable(caption, rows, numbers, unprinted=_unprinted(rows))
    figures = figure_files(
        "best-so-far",
        best_so_far_charts,
        by_trial,
        ylabel=f"best {chosen.name} so far",
        title=f"{heading}: best {chosen.name} so far\n{_about_searches(plotted)}".strip(),
        baselines=baselines,
        percent=percent,
    )
    named = dataclasses.replace(metric, name=chosen.name)
    figures |= _trials_figure(curves, named, baselines, heading)
    report = report_of_tables({"table": table}, rows, figures)
    report = dataclasses.replace(report, closing=[_verdict(rows, chosen, metric)])
    job: Job[Settings, None, Rows] = Job("search compare", lambda *_: report, load_nothing)
    return run_job(job, Settings(tuple(searches), name, tuple(labels), goal, Path(out)))


def _about_searches(searches: Sequence[Compared]) -> str:
    """Formats the settings that all searches share: sampler, trials, training and budgets."""
    lengths = {len(each.result.measured) for each in searches}
    parts = [f"sampler {name}" for name in _common(searches, "sampler")]
    parts += [f"{count} trials" for count in lengths if len(lengths) == 1]
    parts += [
        f"each trained for {count} epoch{'s' * (count != 1)}"
        for count in _common(searches, "epochs")
    ]
    budgets = {within(each.result.goals) for each in searches}
    return ", ".join([*parts, *(text for text in budgets if text and len(budgets) == 1)])


def _common(searches: Sequence[Compared], setting: str) -> list[Any]:
    """Returns the value of a setting that all searches share, else []."""
    values = [(each.settings or {}).get(setting) for each in searches]
    return values[:1] if values[0] and values.count(values[0]) == len(values) else []


def _data_name(model: str) -> str | None:
    """Returns the data set of a built-in model, or None."""
    from chop.models.builtin import BUILTIN_MODELS

    return BUILTIN_MODELS[model].dataset if model in BUILTIN_MODELS else None


def _trials_figure(
    curves: Mapping[str, Sequence[Compared]],
    metric: Metric,
    baselines: Mapping[str, float] | None,
    title: str,
) -> dict[str, Writer]:
    """Plots the goal against bits: a grey point per trial, and the best of each search.

    Returns {} if a search has no bits, or bits are the goal.
    """
    searches = [each for group in curves.values() for each in group]
    trials = [trial for each in searches for trial in each.result.measured]
    if metric.name == BITS or not all(BITS in trial.values for trial in trials):
        return {}

    def place(trial: TrialRecord) -> tuple[float, float]:
        return trial.values[BITS], trial.values[metric.name]

    best = {
        label: [place(each.result.best) for each in group if each.result.best is not None]
        for label, group in curves.items()
    }
    return figure_files(
        "trials",
        accuracy_charts,
        [Curve(f"best of {k}", points, joined=False) for k, points in best.items() if points],
        baselines,
        xlabel="bits per weight",
        title=f"{title}: {metric.name} against bits per weight, every trial",
        metric=metric,
        trials=Trials(list(map(place, trials)), list(map(about_trial, trials))),
    )


def _common_goal(searches: Sequence[Compared], name: str | None) -> Goal:
    """Returns the goal by which the searches are compared."""
    if not searches:
        raise ConfigError("compare: expected at least one search.")
    if name is not None:
        return Goal(name, _direction(searches, name))
    firsts = {each.label: select_objectives(each.result.goals)[0] for each in searches}
    goals = {(goal.name, goal.direction): label for label, goal in firsts.items()}
    if len(goals) > 1:
        listed = ", ".join(f"{goal} ({direction}) in {t}" for (goal, direction), t in goals.items())
        raise ConfigError(
            f"these searches have different goals, {listed}: choose a goal that all measured with "
            "--goal NAME."
        )
    return next(iter(firsts.values()))


def _direction(searches: Sequence[Compared], name: str) -> Direction:
    from chop.problems.mixed_precision import goals as precision
    from chop.problems.nas import goals as nas

    known: dict[str, Direction] = {**nas.DIRECTIONS, **precision.directions()}
    known |= {goal.name: goal.direction for each in searches for goal in each.result.goals}
    check_known(name, known, "goal")
    return known[name]


def _row(label: str, group: Sequence[Compared], runs: Sequence[Run]) -> dict[str, Any]:
    last = [run[-1][1] for run in runs]
    results = [each.result for each in group]
    at = {f"best at {count}": _best_at(runs, count) for count in COUNTS}
    return {
        "searches": label,
        "seeds": len(group),
        "trials": _range([len(result.trials) for result in results]),
        "measured": _range([len(result.measured) for result in results]),
        "best (mean)": mean(last),
        "best (median)": median(last),
        "best (least)": min(last),
        "best (greatest)": max(last),
        **at,
        "seconds": round(median(sum(t.seconds or 0 for t in r.trials) for r in results), 1),
    }


def _verdict(rows: Rows, goal: Goal, metric: Metric) -> str:
    """Returns the order of the best curves, by the median over their seeds, in a sentence."""
    ranked = sorted(rows, key=lambda row: goal.loss(row["best (median)"]))
    listed = [f"{row['searches']} {metric.format_value(row['best (median)'])}" for row in ranked]
    seeds = "median over the seeds" if any(row["seeds"] > 1 for row in rows) else "one seed each"
    return f"Best {in_words(goal.name)} ({seeds}): {enumerate_names(listed, MOST_NAMES)}."


def _unprinted(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """Returns the columns of the best that only the CSV file has: empty ones, and equal ones."""
    empty = {f"best at {count}" for count in COUNTS} - {
        name for row in rows for name, value in row.items() if value is not None
    }
    has_spread = any(row["seeds"] > 1 for row in rows)
    return empty if has_spread else empty | {"best (mean)", "best (least)", "best (greatest)"}


def _best_at(runs: Sequence[Run], count: int) -> float | None:
    """Returns the median after `count` trials, or None unless all runs have that many."""
    if any(run[0][0] > count or run[-1][0] < count for run in runs):
        return None
    return median(value_at(run, count) for run in runs)


def _range(counts: Sequence[int]) -> int | str:
    low, high = min(counts), max(counts)
    return low if low == high else f"{low} to {high}"
