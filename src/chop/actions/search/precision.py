"""Mixed precision as a job: which format each layer takes, within a budget of bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from chop.actions.search.job import BEST_FILE, SearchJob, where_model_is
from chop.actions.search.precision_circuit import check_can_emit, emit_best, is_emitted
from chop.actions.search.precision_recipe import (
    PrecisionResult,
    about_recipe,
    recipe_files,
    recipe_of,
    settings_of_workload,
)
from chop.actions.search.precision_report import (
    judged_note,
    judged_row,
    note_of,
    page_tables,
    precision_figures,
    search_steps,
    shown_of,
    table_row,
)
from chop.actions.search.precision_rows import fitting, goals_for, rows_of
from chop.actions.search.settings import PrecisionConfig
from chop.base.files import write_json
from chop.errors import ConfigError
from chop.formats import format_string
from chop.problems.mixed_precision.candidates import fields_of, varied_fields
from chop.problems.mixed_precision.costs import COSTS
from chop.problems.mixed_precision.held_out import HeldOutRows, HeldOutScore
from chop.problems.mixed_precision.problem import SCORES, PrecisionProblem
from chop.problems.mixed_precision.warm_start import (
    SHARE,
    cached,
    costs_if_any,
    uniforms_within,
    warm_start,
)
from chop.report.measured import MeasuredTable, report_of_tables
from chop.report.report import Cell, Report, Tile
from chop.runs import Outcome
from chop.search import Config, Result, Search
from chop.search.location import storage_file, storage_url
from chop.search.objective import constraints_of, objectives_of
from chop.search.reading import load_search
from chop.statistics.intervals import LEVEL_TEXT
from chop.train import CAUSAL_LM, Metric, Rows
from chop.train.evaluator import Evaluator
from chop.workloads.chance import check_answers, check_judged
from chop.workloads.fingerprints import (
    fingerprint_of_code,
    fingerprint_of_rows,
    fingerprint_of_weights,
)
from chop.workloads.load import workload_for
from chop.workloads.workload import Workload


def prepare(config: PrecisionConfig, workload: Workload | None = None) -> Search:
    """The search over the formats of what `config` names; it has not run.

    Raises:
        ConfigError: settings that do not fit the model.
        UnavailableError: the model or the data set is not there.
    """
    workload, rows, _ = rows_of(config, workload_for(config, workload))
    config = goals_for(config, workload)
    if workload.judge is not None:
        check_judged(workload, config)
    found, goals = _problem(config, workload, rows), config.all_goals()
    found.check_goals(goals)
    identity = {
        "weights": fingerprint_of_weights(workload.model),
        "train": fingerprint_of_rows(workload.train),
        "rows": fingerprint_of_rows(rows),
        "settings": config.identity(),
        **({} if workload.judge is None else {"judge": fingerprint_of_code(workload.judge.code)}),
        "training": found.training and {k: x for k, x in found.training.items() if k != "device"},
    }
    if config.emit:
        check_can_emit(config)
    begin = _without_search(config, found, workload, identity)
    uniforms = uniforms_within(found, goals) if config.begins_warm else {}
    if workload.judge is None:
        check_answers(found.evaluator, found.reference, workload, config)
    return config.search(
        found.space,
        found.measure,
        goals,
        start=[*begin.values(), *uniforms.values()],
        save=lambda chosen, folder: found.graph(chosen).export(folder / "model"),
        problem=identity,
    )


def problem_of(config: PrecisionConfig, workload: Workload) -> PrecisionProblem:
    """What is searched over, measured on the rows of `rows_of`."""
    workload, rows, _ = rows_of(config, workload)
    return _problem(config, workload, rows)


def _problem(config: PrecisionConfig, workload: Workload, rows: Rows) -> PrecisionProblem:
    # A pruner compares what is reported with the objective's own direction.
    scores = (workload.task.metric.name, *SCORES)
    goals = goals_for(config, workload).goals
    goal = next((score for score in scores if goals[0] == score), None)
    training = None
    if config.epochs and not workload.task.can_train:
        raise ConfigError(
            "epochs: evaluate judges the model, and no loss is known to train trials by: give "
            "--loss file.py:fn or --task."
        )
    if config.epochs:
        training = workload.tuning(config.epochs, config.lr, config) | {"device": workload.device}
    joined = workload.task.name == CAUSAL_LM if config.joined is None else config.joined
    return config.problem(workload, rows, goal, training, joined)


def _without_search(
    config: PrecisionConfig,
    found: PrecisionProblem,
    workload: Workload,
    identity: Mapping[str, Any],
) -> dict[str, Config]:
    """By their labels in tables, the configurations that need no search; measured once."""
    if not config.begins_warm:
        return {}
    steps = 3 * config.epochs * len(workload.train) / len(found.evaluator)
    # Where a storage has no folder here, every worker would measure loss increases for itself.
    is_here = storage_file(storage_url(config.storage, config.out)) is not None
    evaluations = SHARE * config.trials * (1 + steps) if is_here else 0.0
    goals = config.all_goals()
    key = {**identity, "goals": [dataclasses.astuple(goal) for goal in goals]}
    return cached(
        config.folder / "no-search.json",
        key,
        lambda: warm_start(found, workload.train, goals, evaluations),
    )


@dataclass(frozen=True)
class _Evaluation:
    """Evaluation of a search's configurations, each by its label in the table.

    Attributes:
        best: the label of the best, or of the nearest where nothing keeps within the budgets.
        values: numbers on the rows of the search.
        scores: numbers on the test rows; of what the search found, those of the best alone.
        verdict: what the search gained on what needed none, for a line; "" where neither has it.
        compared: the same as a sentence.
    """

    best: str
    values: Mapping[str, Mapping[str, float]]
    scores: Mapping[str, HeldOutScore]
    verdict: str = ""
    compared: str = ""


def report(
    config: PrecisionConfig, search: Search, result: Result, workload: Workload | None = None
) -> Report[Result]:
    """Reports a search in `table.csv`, `table.md`, `best.json` and `precision_figures`.

    Raises:
        ConfigError: nothing was measured.
    """
    if not result.measured:
        raise ConfigError(result.why_nothing)
    workload, rows, searched = rows_of(config, workload_for(config, workload))
    found, metric = _problem(config, workload, rows), workload.task.metric
    tested = fitting(workload.test, workload)
    held_out = Evaluator(
        found.layers.mg.model,
        tested,
        batch_size=config.eval_batch_size,
        task=workload.task,
    )
    test = HeldOutRows(found, held_out, objectives_of(result.goals)[0].name)
    begin = _without_search(config, found, workload, search.problem)
    evaluation = _evaluate(search, result, begin, test, config.begins_warm)
    row_of = table_row if workload.judge is None else judged_row
    lines = [
        row_of(label, values, metric, evaluation.scores.get(label), config.circuit_columns())
        for label, values in evaluation.values.items()
    ]
    title, count = f"{workload.title}: mixed precision beside uniform", len(tested)
    counted = workload.count_test(count)
    note = note_of(searched, count, counted, held_out, shown_of(result), evaluation.compared)
    if workload.judge is not None:
        note = judged_note(workload.about_test, test.has_rows, evaluation.compared)
    columns = dict.fromkeys((metric.name, f"search {metric.name}", f"test {metric.name}"), metric)
    table = MeasuredTable(title, lines, columns, note)
    figures = precision_figures(config.sampler, found, result, begin, lines, workload.title)
    recipes = {trial.number: recipe_of(found, trial.config) for trial in shown_of(result)}
    kept = {number: recipe for number, recipe in recipes.items() if recipe is not None}
    whole = PrecisionResult(result.goals, result.trials, kept)
    result = whole
    report: Report[Result] = report_of_tables({"table": table}, result, figures)
    report = replace(report, tables=page_tables(config, result))
    if result.best is None:
        return replace(report, closing=[f"{_nearest(result)}; {config.folder}"])
    noted = _best(search, result, evaluation, metric, searched, count)
    own = {BEST_FILE: lambda path: write_json(path, noted)} | recipe_files(config, whole)
    files = {**report.files, **own}
    values = result.best.values
    reached = evaluation.scores[evaluation.best].formatted(metric)
    if workload.judge is None:
        chosen_by = f"{metric.format_value(values[metric.name])} on {len(rows)} rows of the search"
        reached = f"{chosen_by} and {reached} on {counted}"
    closing = (
        f"best: {values['bits']:.2f} bits per weight, {metric.name} {reached}"
        f"{evaluation.verdict}; {config.folder}{where_model_is(config, result.best)}"
    )
    tested_best = evaluation.scores[evaluation.best]
    about = f"float {evaluation.scores['float'].format_cell(metric)}"
    about += "" if workload.judge else f", {counted}"
    interval = f" ({LEVEL_TEXT} interval)" if tested_best.interval else ""
    tile = Tile(
        f"{metric.name} of the best{interval}",
        Cell(tested_best.value, tested_best.format_cell(metric)),
        about,
    )
    told = [closing, about_recipe(config, whole, found.formats(result.best.config))]
    outcome = Outcome(
        data=workload.dataset,
        metric=metric.name,
        value=tested_best.value,
        reference=evaluation.scores["float"].value,
        is_share=metric.is_share,
        bits=values["bits"],
        size_bytes=round(values["bytes"]),
    )
    steps = search_steps(config, whole)
    return replace(report, files=files, closing=told, tiles=[tile], outcome=outcome, steps=steps)


def _evaluate(
    search: Search,
    result: Result,
    begin: Mapping[str, Config],
    test: HeldOutRows,
    compares: bool,
) -> _Evaluation:
    """Measures what was not measured, and compares the best with what needed no search.

    Args:
        search: to measure with.
        result: its trials.
        begin: what needed no search, by its label.
        test: rows that no trial saw.
        compares: one option everywhere is measured too, each of them.
    """
    found, shown = test.found, shown_of(result)
    searched = {f"trial {trial.number}": trial.config for trial in shown}
    best = next(iter(searched))
    uniforms = {text: found.uniform(text) for text in found.options} if compares else {}
    chosen_ahead = {
        label: chosen
        for label, chosen in {**uniforms, **begin}.items()
        if costs_if_any(found, chosen) is not None
    }
    plain = {"float": None, **chosen_ahead}
    known = {search.space.key(trial.config): trial.values for trial in result.measured}
    values: dict[str, Mapping[str, float]] = {}
    scores: dict[str, HeldOutScore] = {}
    for label, chosen in {**plain, **searched}.items():
        if label in plain or label == best:
            scores[label] = test.score(chosen)
        if chosen is None:
            values[label] = found.score({}) | found.costs({})
        else:
            values[label] = known.get(search.space.key(chosen)) or found.measure(
                chosen, _ignore_report
            )
    baseline = _baseline(result, begin, values)
    if baseline is None:
        return _Evaluation(best, values, scores)
    gained = test.compare(scores[best], scores[baseline], baseline)
    return _Evaluation(best, values, scores, *gained)


def _best(
    search: Search,
    result: Result,
    evaluation: _Evaluation,
    metric: Metric,
    searched: str,
    test_rows: int,
) -> dict[str, Any]:
    """Content of `best.json`."""
    best, held_out = result.best, evaluation.scores[evaluation.best]
    assert best is not None
    return {
        "choices": dict(best.config),
        "key": best.key,
        "values": dict(best.values),
        "search_rows": searched,
        "test_rows": test_rows,
        f"test_{metric.name}": held_out.value,
        "test_interval_95": held_out.interval,
        "test_kl": held_out.kl,
        "compared": evaluation.compared,
        "measured": len(result.measured),
        "configurations": search.space.size,
    }


def _ignore_report(step: int, value: float) -> None:
    """Ignores intermediate values: a row of the table is not pruned."""


def _baseline(
    result: Result, begin: Mapping[str, Config], values: Mapping[str, Mapping[str, float]]
) -> str | None:
    """The label of what the best is compared with: the better of what needed no search.

    Returns: None where there are several objectives, or no such configuration in the budgets.
    """
    objectives = objectives_of(result.goals)
    if result.best is None or len(objectives) > 1 or objectives[0].name in COSTS:
        return None
    limits = constraints_of(result.goals)
    within = [
        label
        for label in begin
        if all(limit.excess(values[label][limit.name]) <= 0 for limit in limits)
    ]
    goal = objectives[0]
    return min(within, key=lambda label: goal.loss(values[label][goal.name]), default=None)


def _nearest(result: Result) -> str:
    """What is said where nothing keeps within the budgets."""
    nearest = result.ranked[0]
    reached = ", ".join(f"{goal.name} {nearest.values[goal.name]:.4g}" for goal in result.goals)
    beyond = f"the nearest, trial {nearest.number}, has {reached}"
    return f"no configuration keeps within the budgets; {beyond}"


def export(config: PrecisionConfig, chosen: Config) -> dict[str, Any]:
    """The settings of `chop compress` that build a configuration, scales derived.

    Raises:
        ConfigError: settings that do not fit the model.
        UnavailableError: the model or the data set is not there.
    """
    rules = problem_of(config, workload_for(config, None)).pass_args(chosen)
    if config.epochs:
        Console().print(
            "The formats are exported, the weights that trials were trained to are not: those are "
            f"in {config.folder}/best, and chop compress trains its own for {config.epochs} "
            f"epoch{'s' * (config.epochs > 1)} "
            "where the rounded model is not within its --max-drop.",
            highlight=False,
            markup=False,
        )
    return {
        **settings_of_workload(config),
        "formats": [],
        "keep_best": True,
        **({"qat_epochs": config.epochs, "qat_lr": config.lr} if config.epochs else {}),
        "layers": {
            name: {
                n: format_string(fmt) for n, fmt in rule["config"].items() if not fmt.is_identity
            }
            for name, rule in rules.items()
            if name != "by"
        },
    }


def split(config: PrecisionConfig) -> dict[str, dict[str, Any]]:
    """With `per_format`, what the search of each format alone has of the settings, by the format.

    It keeps the values of the fields that the format has.
    """
    found: dict[str, dict[str, Any]] = {}
    for given in config.formats if config.per_format else ():
        fields = fields_of(given)
        found[given] = {
            "formats": (given,),
            "per_format": False,
            "warm_start": config.begins_warm,
            "widths": config.widths if "width" in fields else None,
            "ranges": {name: values for name, values in config.ranges.items() if name in fields},
            "budgets": {} if config.budgets is None else config.budgets,
        }
    return found


def describe(config: PrecisionConfig) -> dict[str, Any]:
    """For a table that compares searches, the options of a choice and the fields that they vary."""
    options = config.candidates()
    return {"options": len(options), "varied": varied_fields(options.values())}


def finish(config: PrecisionConfig, result: Result) -> None:
    """Emits the circuit of the best, where it is asked for."""
    if config.emit and result.best is not None:
        workload = workload_for(config, None)
        emit_best(config, problem_of(config, workload), result.best, workload)


def is_complete(config: PrecisionConfig) -> bool:
    """Whether the circuit of the best is there, if it is asked for: a kill may have come first."""
    if not config.emit:
        return True
    best = load_search(config.storage or str(config.out), config.study)[1].best
    return best is None or is_emitted(config, best)


JOB = SearchJob(
    PrecisionConfig.JOB_NAME,
    PrecisionConfig,
    prepare,
    report,
    export,
    split,
    describe,
    finish,
    is_complete,
)
"""Behind `chop search precision`."""
