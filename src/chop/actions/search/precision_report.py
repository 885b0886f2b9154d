"""Report of a precision search: table, figures, `best.json`, recipes, and next steps.

Only float, uniform formats, closed-form assignments and the best trial have test scores. The rest
of a Pareto front has scores on search rows only: choosing from it by test scores would leave no
unseen test data.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chop.actions.next_steps import export_search_step, steps_after_search
from chop.actions.search.job import BEST_FILE, best_model, where_model_is
from chop.actions.search.precision_evaluation import SearchEvaluation, best_trials, evaluate_search
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
from chop.base.trust import confirmation
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
        ConfigError: if no trial was measured.
    """
    if not result.measured:
        raise ConfigError(result.why_nothing)
    config, problem, workload = subject.config, subject.problem, subject.workload
    held_out = Evaluator(
        problem.layers.mg.model,
        fitting(workload.test, workload),
        batch_size=config.eval_batch_size,
        task=workload.task,
    )
    test = HeldOutRows(problem, held_out, select_objectives(result.goals)[0].name)
    evaluation = evaluate_search(subject, result, test)
    table = _table(subject, result, evaluation, test)
    figures = precision_figures(
        config.sampler,
        problem,
        result,
        subject.begin,
        table.rows,
        workload.title,
        f"{len(subject.split.rows)} search rows",
    )
    recipes = {trial.number: get_recipe(problem, trial.config) for trial in best_trials(result)}
    weight_recipes = {number: recipe for number, recipe in recipes.items() if recipe is not None}
    whole = PrecisionResult(result.goals, result.trials, weight_recipes)
    report: Report[Result] = report_of_tables({"table": table}, whole, figures)
    report = replace(report, tables=page_tables(config, whole))
    if whole.best is None:
        return replace(report, closing=[f"{_nearest(whole)}; {config.folder}"])
    summary = _best(subject, whole, evaluation, len(test.held_out))
    own = {BEST_FILE: lambda path: write_json(path, summary)} | recipe_files(config, whole)
    return replace(
        report,
        files={**report.files, **own},
        closing=[
            _closing(subject, whole, evaluation, test),
            about_recipe(config, whole, problem.formats(whole.best.config)),
        ],
        tiles=[_tile(subject, evaluation, test)],
        outcome=_outcome(subject, whole, evaluation),
        steps=_steps(config, whole),
    )


def _table(
    subject: PrecisionSubject, result: Result, evaluation: SearchEvaluation, test: HeldOutRows
) -> MeasuredTable:
    """Returns the table of the search and its baselines, with its note."""
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
        best_trials(result),
        evaluation.compared,
    )
    if workload.judge is not None:
        note = judged_note(workload.about_test, test.has_rows, evaluation.compared)
    has_uniform = any(label in evaluation.values for label in subject.problem.options)
    about = "mixed precision against uniform formats" if has_uniform else "mixed precision"
    columns = dict.fromkeys((metric.name, f"search {metric.name}", f"test {metric.name}"), metric)
    return MeasuredTable(f"{workload.title}: {about}", lines, columns, note)


def _best(
    subject: PrecisionSubject, result: Result, evaluation: SearchEvaluation, test_rows: int
) -> dict[str, Any]:
    """Returns the content of `best.json`."""
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
    """Returns the closing line about the best trial."""
    config, workload, best = subject.config, subject.workload, result.best
    assert best is not None
    metric, values = workload.task.metric, best.values
    reached = evaluation.scores[evaluation.best].formatted(metric)
    if workload.judge is None:
        chosen_by = metric.format_value(values[metric.name])
        counted = workload.count_test(len(test.held_out))
        searched = f"{chosen_by} on {len(subject.split.rows)} search rows"
        reached = f"{searched} and {reached} on {counted}"
    size = subject.search.space.size
    # A small space ends the search before its number of trials.
    ended = f"; measured all {size} configurations" if len(result.measured) >= size else ""
    return (
        f"best: {values['bits']:.2f} bits per weight, {metric.name} {reached}"
        f"{evaluation.verdict}{ended}; {config.folder}{where_model_is(config, best)}"
    )


def _nearest(result: Result) -> str:
    """Returns the closing line if no trial is within the budgets."""
    nearest = result.ranked[0]
    reached = ", ".join(f"{goal.name} {nearest.values[goal.name]:.4g}" for goal in result.goals)
    beyond = f"the nearest, trial {nearest.number}, has {reached}"
    return f"no configuration is within the budgets; {beyond}"


def _tile(subject: PrecisionSubject, evaluation: SearchEvaluation, test: HeldOutRows) -> Tile:
    """Returns the tile with the best trial's score on the test rows, for the page."""
    workload, metric = subject.workload, subject.workload.task.metric
    score = evaluation.scores[evaluation.best]
    about = f"float {evaluation.scores['float'].format_cell(metric)}"
    about += "" if workload.judge else f", {workload.count_test(len(test.held_out))}"
    interval = f" ({LEVEL_TEXT} interval)" if score.interval else ""
    cell = Cell(score.value, score.format_cell(metric))
    return Tile(f"{metric.name} of the best trial{interval}", cell, about)


def _outcome(subject: PrecisionSubject, result: Result, evaluation: SearchEvaluation) -> Outcome:
    """Returns the best trial's numbers for the list of runs."""
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
    """Returns steps that build and load the best model, without a recipe from formats by layer."""
    assert result.best is not None
    has_recipe = result.best.number in result.recipes
    recipe = config.folder / RECIPE_FILE if has_recipe else None
    trust = confirmation((config.model, config.evaluate, config.loss))
    steps = steps_after_search(config.where, best_model(config, result.best), recipe, trust)
    if has_recipe or not config.where:
        return steps
    return [export_search_step(config.where, config.folder, trust), *steps]
