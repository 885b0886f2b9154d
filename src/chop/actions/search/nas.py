"""Architecture search job: trains and evaluates candidate sizes and layers of a model."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from rich import get_console
from torch import nn

from chop.actions.next_steps import steps_after_search
from chop.actions.search.job import BEST_FILE, SearchJob, best_model, where_model_is
from chop.actions.search.settings import NasConfig
from chop.base.files import write_json
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.models import BUILTIN_MODELS, builtin_model
from chop.problems.nas.architecture import SQUARE_LAYERS, Architectures, usual_fields
from chop.problems.nas.proxies import best_share, zero_cost_score
from chop.problems.nas.training import TrainedMeasure, split_rows
from chop.report.measured import MeasuredTable, report_of_tables
from chop.report.report import Report, show
from chop.report.search_figures import search_figures
from chop.runs import Outcome
from chop.search import Config, Result, Search, SearchSpace, TrialRecord
from chop.statistics.intervals import LEVEL_TEXT, wilson_of_share
from chop.train import Metric, Rows, evaluate
from chop.train.intervals import counted
from chop.workloads.fingerprints import fingerprint_of_function, fingerprint_of_rows
from chop.workloads.load import workload_for
from chop.workloads.settings import short_name
from chop.workloads.workload import Training, Workload

PERCENT = ("accuracy",)
SCORED_ROWS = 32
MOST_COUNTED = 500
"""Maximum number of field combinations for which distinct architectures are counted."""


class NasSubject:
    """Architectures of a search and their training, each built once.

    Args:
        config: settings of the search.
        workload: a trained model and rows of the caller. Default: loaded from `config`.
    Raises:
        ConfigError: if settings do not fit the model.
        UnavailableError: if the model or the data set is missing.

    Attributes:
        config: settings of the search.
        workload: the model and its rows.
        candidates: the architectures.
        measure: trains and evaluates an architecture.
    """

    def __init__(self, config: NasConfig, workload: Workload | None = None) -> None:
        if workload is None and (name := builtin_model(config.model)) is not None:
            builtin = BUILTIN_MODELS[name]
            architectures(config, builtin.build(builtin.num_labels))  # before it is trained
        workload = workload_for(config, workload)
        if workload.judge is not None and not workload.can_train(config):
            raise ConfigError(
                "--evaluate: training needs a loss, which a scoring function does not define. Add "
                "--loss file.py:fn, --task or --distill."
            )
        if workload.judge is None and workload.task.metric.name != "accuracy":
            raise ConfigError(
                "chop search nas supports classifiers, with accuracy as the metric; got "
                f"{workload.task.metric.name}."
            )
        self.config, self.workload = config, workload
        self.candidates = architectures(config, workload.model)
        self.measure = _measure(config, self.candidates, workload)

    @cached_property
    def search(self) -> Search:
        """The search over the architectures, before its run."""
        config, workload, measure = self.config, self.workload, self.measure
        return config.search(
            _filtered(config, self.candidates, measure),
            measure,
            config.all_goals(),
            save=measure.save,
            problem={
                "rows": fingerprint_of_rows(workload.train),
                "base": _model_config_json(workload.model),
                "training": _training(config, workload),
                "compression": dataclasses.asdict(measure.compression),
                "proxy": [config.proxy, config.share],
                **_judged(workload),
            },
        )

    @cached_property
    def labels(self) -> int | None:
        """Number of validation labels; None if the user's function scores."""
        return None if self.workload.judge else _labeled(self.measure.validation)


def _judged(workload: Workload) -> dict[str, str]:
    """Returns the identity of the user's scoring function; {} for the task's metric."""
    judge = workload.judge
    if judge is None:
        return {}
    return {"evaluate": fingerprint_of_function(judge.function, judge.code)}


def _model_config_json(model: nn.Module) -> str:
    """Returns a model's configuration without `problem_type`, which its first loss sets."""
    base: Any = copy.deepcopy(model.config)
    base.problem_type = None
    return str(base.to_json_string())


def architectures(config: NasConfig, model: nn.Module) -> Architectures:
    """Returns the architectures to search over, which vary a model."""
    from transformers import PreTrainedConfig

    base = getattr(model, "config", None)
    usual = usual_fields(base) if isinstance(base, PreTrainedConfig) else {}
    fields = usual if config.fields is None else config.fields
    layers = {name: SQUARE_LAYERS[name] for name in config.square_layers}
    return Architectures(model, fields, square_layers=layers, seed=config.seed)


def _training(config: NasConfig, workload: Workload) -> Training:
    """Returns the record of the training of each trial."""
    training = Training(
        epochs=config.epochs, lr=config.lr, batch_size=config.batch_size, seed=config.seed
    )
    return workload.with_distillation(training, config)


def _measure(config: NasConfig, candidates: Architectures, workload: Workload) -> TrainedMeasure:
    train, validation = split_rows(workload.train, config.validation, seed=config.seed)
    training = workload.get_arguments(_training(config, workload))
    compression = config.compression_settings()
    return TrainedMeasure(
        candidates.build,
        train,
        validation,
        training,
        compression,
        device=workload.device,
        task=workload.task,
        judge=workload.judge,
    )


def _filtered(config: NasConfig, candidates: Architectures, measure: TrainedMeasure) -> SearchSpace:
    proxy = config.proxy
    if proxy is None:
        return candidates.space
    batch = next(measure.train.batches(SCORED_ROWS))

    def score(chosen: Config) -> float:
        return zero_cost_score(proxy, candidates.build(chosen), batch, seed=config.seed)

    return best_share(candidates.space, score, share=config.share, seed=config.seed)


def report(subject: NasSubject, result: Result) -> Report[Result]:
    """Reports a search in `table.csv`, `table.md`, `best.json`, and `search_figures`.

    Raises:
        ConfigError: if no trial was measured.
    """
    if not result.measured:
        raise ConfigError(result.why_nothing)
    config, workload, search = subject.config, subject.workload, subject.search
    count = subject.labels
    title = f"{short_name(config.model)}: architectures, best first"
    rows = [_row(search, trial, workload.task.metric, count) for trial in result.ranked]
    if workload.judge is not None:
        note = f"Scored by {workload.judge.title}: the reported numbers also chose the best model."
        columns = {workload.task.metric.name: workload.task.metric}
    else:
        note, columns = _note(count or 0, workload.count_test(_labeled(workload.test))), {}
    table = MeasuredTable(title, rows, columns, note=note)
    blocks = show(*table.blocks)
    if result.best is None:
        closing = "no trial is within the budgets; the table lists the nearest first"
        return replace(
            report_of_tables({"table": table}, result, {}),
            documents={"table.md": blocks},
            closing=[closing],
        )
    summary = _describe(subject, result, result.best)
    about = f"{short_name(config.model)}: architectures"
    figures = search_figures(config.sampler, result, search.space, about, PERCENT)
    base = report_of_tables({"table": table}, result, figures)
    metric = workload.task.metric
    return replace(
        base,
        documents={"table.md": blocks},
        files={**base.files, BEST_FILE: lambda path: write_json(path, summary)},
        closing=[_best_line(config, result.best, summary, metric)],
        outcome=Outcome(
            data=workload.dataset,
            metric=metric.name,
            value=summary.get("test_accuracy", result.best.values[metric.name]),
            is_share=metric.is_share,
            size_bytes=round(result.best.values["size_bytes"]),
        ),
        steps=steps_after_search(config.where, best_model(config, result.best), None),
    )


def _best_line(
    config: NasConfig, best: TrialRecord, summary: Mapping[str, Any], metric: Metric
) -> str:
    scores = [metric.format_value(best.values[metric.name])]
    if "test_accuracy" in summary:
        scores = _with_intervals(best, summary)
    return (
        f"best: {metric.name} {', '.join(scores)}, {best.values['parameters']:,.0f} parameters; "
        f"measured {summary['measured']} of {summary['different'] or summary['configurations']:,} "
        f"architectures; {config.folder}{where_model_is(config, best)}"
    )


def _with_intervals(best: TrialRecord, summary: Mapping[str, Any]) -> list[str]:
    """Formats the accuracy on validation and on test rows."""
    return [
        f"{share:.2%} ({LEVEL_TEXT} interval {_format_interval(summary[f'{kind}_interval_95'])}) "
        f"on {summary[f'{kind}_rows']} {kind} rows"
        for kind, share in (
            ("validation", best.values["accuracy"]),
            ("test", summary["test_accuracy"]),
        )
    ]


def _note(validation: int, test: str) -> str:
    """Returns the note below the table."""
    return (
        f"validation: {validation} rows held out of the training rows. They choose the best model, "
        "so its accuracy on them is optimistic. "
        f"test: {test}, used for reporting only; best.json has its accuracy on them. "
        f"The intervals are {LEVEL_TEXT} Wilson score intervals."
    )


def _labeled(rows: Rows) -> int:
    """Returns the number of labels that an accuracy counts."""
    return len(counted(rows.labels))


def _format_interval(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.2%} to {interval[1]:.2%}"


def _row(search: Search, trial: TrialRecord, metric: Metric, count: int | None) -> dict[str, Any]:
    """Returns a row of the table.

    Args:
        search: search with the space.
        trial: trial of the row.
        metric: metric of the trials.
        count: number of validation rows; None if the user's function scores.
    """
    value = trial.values[metric.name]
    score: dict[str, Any] = {metric.name: value}
    if count is not None:
        interval = _format_interval(wilson_of_share(value, count))
        score = {"validation accuracy": value, "95% interval": interval}
    texts = search.space.folded(trial.config)
    values = search.space.values(texts)
    replacements = [value for value in values.values() if value in SQUARE_LAYERS.values()]
    return {
        "trial": trial.number,
        **score,
        "parameters": round(trial.values["parameters"]),
        "size (bytes)": round(trial.values["size_bytes"]),
        **{name: texts[name] for name, value in values.items() if value not in replacements},
        "layers replaced": sum(value is not SQUARE_LAYERS["Linear"] for value in replacements),
    }


def _describe(subject: NasSubject, result: Result, best: TrialRecord) -> dict[str, Any]:
    """Returns facts about the best architecture, with its accuracy on test rows.

    Trains its model again if `config.folder` lacks it.
    """
    config, workload, validation = subject.config, subject.workload, subject.labels
    if validation is None:
        return _about_best(subject, result, best)
    saved = config.folder / "best" / best.key / "model"
    if saved.with_suffix(".pt").is_file():
        model: nn.Module = MaseGraph.from_checkpoint(saved).model
    else:
        message = f"the model of trial {best.number} is not in {saved.parent}"
        get_console().print(
            f"{message}: training it again to get its test accuracy", highlight=False, markup=False
        )
        model = subject.measure.trained(best.config)
    accuracy = evaluate(model, workload.test, device=workload.device)
    count = _labeled(workload.test)
    return {
        **_about_best(subject, result, best),
        "validation_rows": validation,
        "validation_interval_95": wilson_of_share(best.values["accuracy"], validation),
        "test_accuracy": accuracy,
        "test_rows": count,
        "test_interval_95": wilson_of_share(accuracy, count),
    }


def _about_best(subject: NasSubject, result: Result, best: TrialRecord) -> dict[str, Any]:
    """Returns the best architecture, and counts of the search."""
    candidates, space = subject.candidates, subject.search.space
    combinations = math.prod(map(len, candidates.fields.values()))
    return {
        "choices": dict(space.folded(best.config)),
        "values": dict(best.values),
        "key": best.key,
        "compression": subject.config.compression,
        "measured": len(result.measured),
        "configurations": space.size,
        "different": candidates.num_distinct() if combinations <= MOST_COUNTED else None,
    }


def export(config: NasConfig, chosen: Config) -> dict[str, Any]:
    """Rejects the export, because an architecture is a model, not a setting of compression.

    Raises:
        ConfigError: always; the message has the folder of the models.
    """
    raise ConfigError(
        "an architecture is not a setting of `chop compress`. The best models are in "
        f"{config.folder}/best; load them with MaseGraph.from_checkpoint."
    )


JOB = SearchJob(NasConfig.JOB_NAME, NasConfig, NasSubject, report, export)
"""Job of `chop search nas`."""
