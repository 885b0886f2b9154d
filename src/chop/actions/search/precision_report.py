"""Report of a precision search: table, figures, `best.json`, recipes, and next steps.

Test numbers are given for float, of one option everywhere, of what needs no search, and of the best
alone. The rest of a Pareto front has numbers of the search only: a reader who chose among it by
test numbers would be left without a test, as trials that were chosen by them would.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chop.actions.next_steps import export_search_step, steps_after_search
from chop.actions.search.job import BEST_FILE, best_model, where_model_is
from chop.actions.search.precision_evaluation import SearchEvaluation, evaluate_search, shown_trials
from chop.actions.search.precision_figures import page_tables, precision_figures
from chop.actions.search.precision_recipe import (
    RECIPE_FILE,
    PrecisionResult,
    about_recipe,
    get_recipe,
    recipe_files,
)
from chop.actions.search.precision_rows import fitting
from chop.actions.search.precision_subject import PrecisionSubject
from chop.actions.search.precision_table import judged_note, judged_row, table_note, table_row
from chop.actions.search.settings import PrecisionConfig
from chop.base.files import write_json
from chop.errors import ConfigError
from chop.problems.mixed_precision.held_out import HeldOutRows
from chop.report.measured import MeasuredTable, report_of_tables
from chop.report.report import Cell, Report, Step, Tile
from chop.runs import Outcome
from chop.search import Result
from chop.search.objective import select_objectives
from chop.statistics.intervals import LEVEL_TEXT
from chop.train.evaluator import Evaluator


def report(subject: PrecisionSubject, result: Result) -> Report[Result]:
    """Reports a search in `table.csv`, `table.md`, `best.json` and `precision_figures`.

    Raises:
        ConfigError: nothing was measured.
    """
    if not result.measured:
        raise ConfigError(result.why_nothing)
    config, found, workload = subject.config, subject.problem, subject.workload
    held_out = Evaluator(
        found.layers.mg.model,
        fitting(workload.test, workload),
        batch_size=config.eval_batch_size,
        task=workload.task,
    )
    test = HeldOutRows(found, held_out, select_objectives(result.goals)[0].name)
    evaluation = evaluate_search(subject, result, test)
    table = _table(subject, result, evaluation, test)
    figures = precision_figures(
        config.sampler, found, result, subject.begin, table.rows, workload.title
    )
    recipes = {trial.number: get_recipe(found, trial.config) for trial in shown_trials(result)}
    kept = {number: recipe for number, recipe in recipes.items() if recipe is not None}
    whole = PrecisionResult(result.goals, result.trials, kept)
    report: Report[Result] = report_of_tables({"table": table}, whole, figures)
    report = replace(report, tables=page_tables(config, whole))
    if whole.best is None:
        return replace(report, closing=[f"{_nearest(whole)}; {config.folder}"])
    noted = _best(subject, whole, evaluation, len(test.held_out))
    own = {BEST_FILE: lambda path: write_json(path, noted)} | recipe_files(config, whole)
    return replace(
        report,
        files={**report.files, **own},
        closing=[
            _closing(subject, whole, evaluation, test),
            about_recipe(config, whole, found.formats(whole.best.config)),
        ],
        tiles=[_tile(subject, evaluation, test)],
        outcome=_outcome(subject, whole, evaluation),
        steps=_steps(config, whole),
    )


def _table(
    subject: PrecisionSubject, result: Result, evaluation: SearchEvaluation, test: HeldOutRows
) -> MeasuredTable:
    """The table of the search beside what needs none, with its note."""
    workload, metric = subject.workload, subject.workload.task.metric
    get_row = table_row if workload.judge is None else judged_row
    circuit = subject.config.circuit_columns()
    lines = [
        get_row(label, values, metric, evaluation.scores.get(label), circuit)
        for label, values in evaluation.values.items()
    ]
    count = len(test.held_out)
    note = table_note(
        subject.split.about,
        count,
        workload.count_test(count),
        test.held_out,
        shown_trials(result),
        evaluation.compared,
    )
    if workload.judge is not None:
        note = judged_note(workload.about_test, test.has_rows, evaluation.compared)
    columns = dict.fromkeys((metric.name, f"search {metric.name}", f"test {metric.name}"), metric)
    return MeasuredTable(f"{workload.title}: mixed precision beside uniform", lines, columns, note)


def _best(
    subject: PrecisionSubject, result: Result, evaluation: SearchEvaluation, test_rows: int
) -> dict[str, Any]:
    """Content of `best.json`."""
    best, held_out = result.best, evaluation.scores[evaluation.best]
    assert best is not None
    return {
        "choices": dict(best.config),
        "key": best.key,
        "values": dict(best.values),
        "search_rows": subject.split.about,
        "test_rows": test_rows,
        f"test_{subject.workload.task.metric.name}": held_out.value,
        "test_interval_95": held_out.interval,
        "test_kl": held_out.kl,
        "compared": evaluation.compared,
        "measured": len(result.measured),
        "configurations": subject.search.space.size,
    }


def _closing(
    subject: PrecisionSubject, result: Result, evaluation: SearchEvaluation, test: HeldOutRows
) -> str:
    """The line about the best."""
    config, workload, best = subject.config, subject.workload, result.best
    assert best is not None
    metric, values = workload.task.metric, best.values
    reached = evaluation.scores[evaluation.best].formatted(metric)
    if workload.judge is None:
        chosen_by = metric.format_value(values[metric.name])
        counted = workload.count_test(len(test.held_out))
        searched = f"{chosen_by} on {len(subject.split.rows)} rows of the search"
        reached = f"{searched} and {reached} on {counted}"
    return (
        f"best: {values['bits']:.2f} bits per weight, {metric.name} {reached}"
        f"{evaluation.verdict}; {config.folder}{where_model_is(config, best)}"
    )


def _nearest(result: Result) -> str:
    """The line where nothing keeps within the budgets."""
    nearest = result.ranked[0]
    reached = ", ".join(f"{goal.name} {nearest.values[goal.name]:.4g}" for goal in result.goals)
    beyond = f"the nearest, trial {nearest.number}, has {reached}"
    return f"no configuration keeps within the budgets; {beyond}"


def _tile(subject: PrecisionSubject, evaluation: SearchEvaluation, test: HeldOutRows) -> Tile:
    """The best's score on the test rows, for the page."""
    workload, metric = subject.workload, subject.workload.task.metric
    score = evaluation.scores[evaluation.best]
    about = f"float {evaluation.scores['float'].format_cell(metric)}"
    about += "" if workload.judge else f", {workload.count_test(len(test.held_out))}"
    interval = f" ({LEVEL_TEXT} interval)" if score.interval else ""
    cell = Cell(score.value, score.format_cell(metric))
    return Tile(f"{metric.name} of the best{interval}", cell, about)


def _outcome(subject: PrecisionSubject, result: Result, evaluation: SearchEvaluation) -> Outcome:
    """The best's numbers, for the list of runs."""
    metric, best = subject.workload.task.metric, result.best
    assert best is not None
    return Outcome(
        data=subject.workload.dataset,
        metric=metric.name,
        value=evaluation.scores[evaluation.best].value,
        reference=evaluation.scores["float"].value,
        is_share=metric.is_share,
        bits=best.values["bits"],
        size_bytes=round(best.values["bytes"]),
    )


def _steps(config: PrecisionConfig, result: PrecisionResult) -> list[Step]:
    """Steps that build and load the best. Without a recipe they list formats by layer."""
    assert result.best is not None
    has_recipe = result.best.number in result.recipes
    recipe = config.folder / RECIPE_FILE if has_recipe else None
    steps = steps_after_search(config.folder, best_model(config, result.best), recipe)
    return steps if has_recipe else [export_search_step(config.folder), *steps]
