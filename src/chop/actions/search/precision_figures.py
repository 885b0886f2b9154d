"""Figures of a precision search: accuracy against bits, formats by layer, progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chop.actions.search.precision_evaluation import best_trials
from chop.actions.search.settings import PrecisionConfig
from chop.problems.mixed_precision import PrecisionProblem
from chop.problems.mixed_precision.candidates import short_texts
from chop.problems.mixed_precision.warm_start import LABEL
from chop.report.charts.accuracy import Curve, Trials, accuracy_charts
from chop.report.charts.heat_map import layer_map_charts
from chop.report.format_legend import format_legend
from chop.report.report import Table, Writer, figure_files
from chop.report.search_figures import about_trial, search_figures
from chop.search import Config, Result
from chop.search.objective import select_objectives


def precision_figures(
    sampler: str,
    problem: PrecisionProblem,
    result: Result,
    begin: Mapping[str, Config],
    rows: Sequence[Mapping[str, Any]],
    title: str,
    about_rows: str,
) -> dict[str, Writer]:
    """Returns the figures of a search over formats, including those of `search_figures`.

    `accuracy` (named by the metric): metric on the search rows against average bits, for every
    trial, the front, uniform formats and closed-form assignments; also the best trial on test rows.
    `formats`: the bits of each layer, with its format in the cell.

    Args:
        sampler: label of the curve.
        problem: problem of the search.
        result: result with the measured trials.
        begin: closed-form assignments by label.
        rows: rows of the table: float, uniform formats (if measured), `begin`, and searched trials.
        title: title of each figure.
        about_rows: number and kind of the rows that trials are evaluated on.
    """
    metric = problem.evaluator.task.metric
    # A function judges on rows of its own, once; a metric has search rows and test rows.
    judges = problem.judge is not None
    column, place = metric.name if judges else f"search {metric.name}", f" on {about_rows}"
    heading = f"{title}: {metric.name}{'' if judges else place} against bits, every trial"
    accuracy = _accuracy_figures(problem, result, begin, rows, column, heading)
    shares = (metric.name,) if metric.is_share else ()
    is_metric = select_objectives(result.goals)[0].name == metric.name
    levels = {"float": rows[0][column]} if is_metric else {}
    progress = search_figures(sampler, result, problem.space, title, shares, levels)
    return {**accuracy, **_format_figures(problem, result, begin, title), **progress}


def _accuracy_figures(
    problem: PrecisionProblem,
    result: Result,
    begin: Mapping[str, Config],
    rows: Sequence[Mapping[str, Any]],
    column: str,
    title: str,
) -> dict[str, Writer]:
    """Returns the figures of the metric, a column of the rows, against average bits."""
    metric = problem.evaluator.task.metric
    uniform = [row for row in rows if row["formats"] in problem.options]
    ahead = [row for row in rows if row["formats"] in begin]
    searched = rows[1 + len(uniform) + len(ahead) :]
    best_label = "best trial" if len(searched) == 1 else "best trials"
    parts = {"the same everywhere": uniform, LABEL: ahead, best_label: searched}
    curves = [
        Curve(label, [(row["bits"], row[column]) for row in part])
        for label, part in parts.items()
        if part
    ]
    best, name = searched[0], f"test {metric.name}"
    if best.get(name) is not None:
        point = [(best["bits"], best[name])]
        curves.append(Curve(f"{best['formats']} on the test rows", point, best_label, dashed=True))
    trials = Trials(
        [(trial.values["bits"], trial.values[metric.name]) for trial in result.measured],
        [about_trial(trial) for trial in result.measured],
    )
    return figure_files(
        metric.name,
        accuracy_charts,
        curves,
        {"float": rows[0][column]},
        xlabel="bits per weight",
        title=title,
        metric=metric,
        trials=trials,
    )


def _format_figures(
    problem: PrecisionProblem, result: Result, begin: Mapping[str, Config], title: str
) -> dict[str, Writer]:
    """Returns the figures of the format of each layer, in `begin` and in the best trials."""
    mixed = {**begin, **{f"trial {trial.number}": trial.config for trial in best_trials(result)}}
    cells = {
        (name, label): problem.bits(name, chosen[name])
        for name in problem.targets
        for label, chosen in mixed.items()
    }
    short, meaning = short_texts(problem.options)
    return figure_files(
        "formats",
        layer_map_charts,
        cells,
        xlabel="",
        measure="bits",
        title=f"{title}: format of each layer{f' ({meaning})' * bool(meaning)}",
        texts={(name, label): short[mixed[label][name]] for name, label in cells},
    )


def page_tables(config: PrecisionConfig, result: Result) -> list[Table]:
    """Returns tables of the chosen formats of each layer and of their meaning, for a page."""
    legend = format_legend(config.candidates().values())
    return [_formats_table(result), *([legend] if legend else [])]


def _formats_table(result: Result) -> Table:
    """Returns the table of formats by layer and circuit: a column per trial of the front."""
    front = best_trials(result)
    rows = [
        {
            "choice": name,
            **{f"trial {trial.number}": trial.config[name] for trial in front},
        }
        for name in front[0].config
    ]
    return Table("Formats by layer", rows)
