"""Report of a precision search: figures, and tables with intervals.

Test numbers are given for float, of one option everywhere, of what needs no search, and of the best
alone. The rest of a Pareto front has numbers of the search only: a reader who chose among it by
test numbers would be left without a test, as trials that were chosen by them would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chop.actions.next_steps import export_search_step, steps_after_search
from chop.actions.search.job import best_model
from chop.actions.search.precision_recipe import RECIPE_FILE, PrecisionResult
from chop.actions.search.settings import PrecisionConfig
from chop.problems.mixed_precision import PrecisionProblem
from chop.problems.mixed_precision.candidates import short_texts
from chop.problems.mixed_precision.held_out import HeldOutScore
from chop.problems.mixed_precision.warm_start import LABEL
from chop.report.charts.accuracy import Curve, Trials, accuracy_charts
from chop.report.charts.heat_map import layer_map_charts
from chop.report.format_legend import format_legend
from chop.report.report import Step, Table, Writer, figure_files
from chop.report.search_figures import about_trial, search_figures
from chop.search import Config, Result, TrialRecord
from chop.statistics.intervals import LEVEL_TEXT
from chop.train import Metric
from chop.train.evaluator import Evaluator
from chop.train.intervals import interval_note


def table_row(
    label: str,
    values: Mapping[str, float],
    metric: Metric,
    test: HeldOutScore | None,
    circuit: Sequence[tuple[str, int]] = (),
) -> dict[str, Any]:
    """A line of the table.

    Args:
        label: what the formats are called.
        values: numbers and costs on the rows of the search.
        metric: the task's.
        test: None leaves the columns of the test rows empty.
        circuit: which numbers of a circuit have a column, and places of their fractions.
    """
    interval = None if test is None or test.interval is None else test.interval
    row = {
        "formats": label,
        "bits": values["bits"],
        "activation_bits": f"{values['activation_bits']:.2f}",
        "kilobytes": f"{values['bytes'] / 1000:.1f}",
        f"search {metric.name}": values[metric.name],
        "search loss": f"{values['loss']:.4f}",
    }
    for name, places in circuit:
        row[name] = f"{values[name]:.{places}f}" if name in values else None
    test_kl = None if test is None else test.kl
    if "kl" in values:
        row["search kl"] = f"{values['kl']:.4g}"
    row[f"test {metric.name}"] = None if test is None else test.value
    row["95% interval"] = interval and " to ".join(map(metric.format_value, interval))
    if "kl" in values:
        row["test kl"] = None if test_kl is None else f"{test_kl:.4g}"
    return row


def judged_row(
    label: str,
    values: Mapping[str, float],
    metric: Metric,
    score: HeldOutScore | None,
    circuit: Sequence[tuple[str, int]] = (),
) -> dict[str, Any]:
    """Returns the table row if a function of the user computes the score on its own rows."""
    interval = None if score is None else score.interval
    return {
        "formats": label,
        "bits": values["bits"],
        "activation_bits": f"{values['activation_bits']:.2f}",
        "kilobytes": f"{values['bytes'] / 1000:.1f}",
        metric.name: values[metric.name],
        "95% interval": interval and " to ".join(map(metric.format_value, interval)),
        **{name: f"{values[name]:.{n}f}" if name in values else None for name, n in circuit},
    }


def judged_note(about: str, has_rows: bool, compared: str) -> str:
    """Returns the note below the table if a function of the user computes the score."""
    kind = f"Intervals are at {LEVEL_TEXT}, of one number for each row."
    single = "The function gives one number, which has no interval."
    return f"{about} {kind if has_rows else single} {compared}".strip()


def note_of(
    searched: str,
    count: int,
    tested: str,
    held_out: Evaluator,
    front: list[TrialRecord],
    compared: str,
) -> str:
    """Returns the note below the table.

    Args:
        searched: number and kind of the rows that trials were measured on.
        count: number of test rows.
        tested: number and kind of the test rows.
        held_out: evaluator on the test rows.
        front: Pareto front of the search.
        compared: gain of the search, in words.
    """
    parts = [f"search: {searched}.", f"test: {tested}, used for reporting only."]
    parts.append(interval_note(held_out.task.metric))
    if len(held_out.labels) > count:
        parts.append("Tokens of one text count as independent.")
    if len(front) > 1:
        parts.append(
            "Of the Pareto front only the best by the first goal has test numbers: to choose "
            "among the others by them would leave no test."
        )
    return " ".join([*parts, compared]).strip()


def shown_of(result: Result) -> list[TrialRecord]:
    """The front, or the nearest where nothing keeps within the budgets."""
    return result.front or result.ranked[:1]


def precision_figures(
    sampler: str,
    found: PrecisionProblem,
    result: Result,
    begin: Mapping[str, Config],
    rows: list[dict[str, Any]],
    title: str,
) -> dict[str, Writer]:
    """Figures of a search over formats, those of `search_figures` among them.

    `accuracy` (named by the metric): that on the rows of the search against average bits, of every
    trial, of the front, of the same format everywhere and of what needs no search; of the best on
    the test rows as well. `formats`: the bits of each layer, with its format in the cell.

    Args:
        sampler: label of the curve.
        found: what was searched over.
        result: with what was measured.
        begin: what needed no search, by its label.
        rows: the table: float, one option everywhere (if measured), `begin`, and what the search
            found.
        title: above each figure.
    """
    metric, shown = found.evaluator.task.metric, shown_of(result)
    where, place = "search ", " on the rows of the search"
    if found.judge is not None:
        where, place = "", ""
    uniform = [row for row in rows if row["formats"] in found.options]
    ahead = [row for row in rows if row["formats"] in begin]
    searched = rows[1 + len(uniform) + len(ahead) :]
    parts = {"the same everywhere": uniform, LABEL: ahead, "searched": searched}
    curves = [
        Curve(label, [(row["bits"], row[f"{where}{metric.name}"]) for row in part])
        for label, part in parts.items()
        if part
    ]
    best, name = searched[0], f"test {metric.name}"
    if best.get(name) is not None:  # a function judges once, on rows of its own
        point = [(best["bits"], best[name])]
        curves.append(Curve(f"{best['formats']} on the test rows", point, "searched", dashed=True))
    trials = Trials(
        [(trial.values["bits"], trial.values[metric.name]) for trial in result.measured],
        [about_trial(trial) for trial in result.measured],
    )
    accuracy = figure_files(
        metric.name,
        accuracy_charts,
        curves,
        {"float": rows[0][f"{where}{metric.name}"]},
        xlabel="bits per weight",
        title=f"{title}: {metric.name}{place} against bits, every trial",
        metric=metric,
        trials=trials,
    )
    mixed = {**begin, **{f"trial {trial.number}": trial.config for trial in shown}}
    cells = {
        (name, label): found.bits(name, chosen[name])
        for name in found.targets
        for label, chosen in mixed.items()
    }
    short, meaning = short_texts(found.options)
    written = {(name, label): short[mixed[label][name]] for name, label in cells}
    formats = figure_files(
        "formats",
        layer_map_charts,
        cells,
        xlabel="",
        measure="bits",
        title=f"{title}: format of each layer{f' ({meaning})' * bool(meaning)}",
        texts=written,
    )
    shares = (metric.name,) if metric.is_share else ()
    return {**accuracy, **formats, **search_figures(sampler, result, found.space, title, shares)}


def page_tables(config: PrecisionConfig, result: Result) -> list[Table]:
    """Returns tables of the chosen formats of each layer and of their meaning, for a page."""
    legend = format_legend(config.candidates().values())
    return [formats_table(result), *([legend] if legend else [])]


def formats_table(result: Result) -> Table:
    """What was chosen for every layer, and the circuit, of the front, a column each, for a page."""
    shown = shown_of(result)
    rows = [
        {"choice": name, **{f"trial {trial.number}": trial.config[name] for trial in shown}}
        for name in shown[0].config
    ]
    return Table("Formats by layer", rows)


def search_steps(config: PrecisionConfig, result: PrecisionResult) -> list[Step]:
    """Returns steps that build and load the best. Without a recipe they list formats by layer."""
    assert result.best is not None
    has_recipe = result.best.number in result.recipes
    recipe = config.folder / RECIPE_FILE if has_recipe else None
    steps = steps_after_search(config.folder, best_model(config, result.best), recipe)
    return steps if has_recipe else [export_search_step(config.folder), *steps]
