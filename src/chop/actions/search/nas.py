"""Architecture search as a job: which sizes and layers a model should have, trained and judged."""

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
from chop.workloads.workload import Workload

PERCENT = ("accuracy",)
SCORED_ROWS = 32
MOST_COUNTED = 500
"""Combinations of fields up to which the different architectures are counted."""


class NasSubject:
    """Architectures that are searched over, and their training, each built once.

    Args:
        config: the settings.
        workload: a trained model and rows of the caller; None loads what `config` names.
    Raises:
        ConfigError: settings that do not fit the model.
        UnavailableError: the model or the data set is not there.

    Attributes:
        config: the settings.
        workload: the model and its rows.
        found: the architectures.
        measure: trains and judges one.
    """

    def __init__(self, config: NasConfig, workload: Workload | None = None) -> None:
        workload = workload_for(config, workload)
        if workload.judge is not None and not workload.task.can_train:
            raise ConfigError(
                "--evaluate judges the models, and no loss is known to train them by: give --loss "
                "file.py:fn or --task."
            )
        if workload.judge is None and workload.task.metric.name != "accuracy":
            raise ConfigError(
                "chop search nas judges classifiers by accuracy, not by "
                f"{workload.task.metric.name}."
            )
        self.config, self.workload = config, workload
        self.found = architectures(config, workload)
        self.measure = _measure(config, self.found, workload)

    @cached_property
    def search(self) -> Search:
        """The search over the architectures; it has not run."""
        config, workload, measure = self.config, self.workload, self.measure
        return config.search(
            _filtered(config, self.found, measure),
            measure,
            config.all_goals(),
            save=measure.save,
            problem={
                "rows": fingerprint_of_rows(workload.train),
                "base": _model_config_json(workload.model),
                "training": measure.training,
                "compression": dataclasses.asdict(measure.compression),
                "proxy": [config.proxy, config.share],
                **_judged(workload),
            },
        )

    @cached_property
    def labels(self) -> int | None:
        """Number of validation labels; None where a function of the user judges."""
        return None if self.workload.judge else _labeled(self.measure.validation)


def _judged(workload: Workload) -> dict[str, str]:
    """Identity of the function that judges; empty where the task's metric judges."""
    judge = workload.judge
    if judge is None:
        return {}
    return {"evaluate": fingerprint_of_function(judge.function, judge.code)}


def _model_config_json(model: nn.Module) -> str:
    """A model's configuration, but for what its first loss sets: a model just trained has it."""
    base: Any = copy.deepcopy(model.config)
    base.problem_type = None
    return str(base.to_json_string())


def architectures(config: NasConfig, workload: Workload) -> Architectures:
    """The models that are searched over."""
    from transformers import PreTrainedConfig

    base = getattr(workload.model, "config", None)
    usual = usual_fields(base) if isinstance(base, PreTrainedConfig) else {}
    fields = usual if config.fields is None else config.fields
    layers = {name: SQUARE_LAYERS[name] for name in config.square_layers}
    return Architectures(workload.model, fields, square_layers=layers, seed=config.seed)


def _measure(config: NasConfig, found: Architectures, workload: Workload) -> TrainedMeasure:
    train, validation = split_rows(workload.train, config.validation, seed=config.seed)
    training = {"epochs": config.epochs, "lr": config.lr}
    training |= {"batch_size": config.batch_size, "seed": config.seed}
    compression = config.how_compressed()
    return TrainedMeasure(
        found.build,
        train,
        validation,
        training,
        compression,
        device=workload.device,
        task=workload.task,
        judge=workload.judge,
    )


def _filtered(config: NasConfig, found: Architectures, measure: TrainedMeasure) -> SearchSpace:
    proxy = config.proxy
    if proxy is None:
        return found.space
    batch = next(measure.train.batches(SCORED_ROWS))

    def score(chosen: Config) -> float:
        return zero_cost_score(proxy, found.build(chosen), batch, seed=config.seed)

    return best_share(found.space, score, share=config.share, seed=config.seed)


def report(subject: NasSubject, result: Result) -> Report[Result]:
    """Reports a search in `table.csv`, `table.md`, `best.json`, and `search_figures`.

    Raises:
        ConfigError: nothing was measured.
    """
    if not result.measured:
        raise ConfigError(result.why_nothing)
    config, workload, search = subject.config, subject.workload, subject.search
    count = subject.labels
    title = f"{short_name(config.model)}: architectures, best first"
    rows = [_row(search, trial, workload.task.metric, count) for trial in result.ranked]
    if workload.judge is not None:
        note = f"Judged by {workload.judge.title}: the best is chosen by the numbers reported."
        columns = {workload.task.metric.name: workload.task.metric}
    else:
        note, columns = _note(count or 0, workload.count_test(_labeled(workload.test))), {}
    table = MeasuredTable(title, rows, columns, note=note)
    shown = show(*table.blocks)
    if result.best is None:
        closing = "none keeps within the budgets; the nearest come first in the table"
        return replace(
            report_of_tables({"table": table}, result, {}),
            documents={"table.md": shown},
            closing=[closing],
        )
    noted = _describe(subject, result, result.best)
    about = f"{short_name(config.model)}: architectures"
    figures = search_figures(config.sampler, result, search.space, about, PERCENT)
    found = report_of_tables({"table": table}, result, figures)
    metric = workload.task.metric
    return replace(
        found,
        documents={"table.md": shown},
        files={**found.files, BEST_FILE: lambda path: write_json(path, noted)},
        closing=[_best_line(config, result.best, noted, metric)],
        outcome=Outcome(
            data=workload.dataset,
            metric=metric.name,
            value=noted.get("test_accuracy", result.best.values[metric.name]),
            is_share=metric.is_share,
            size_bytes=round(result.best.values["size_bytes"]),
        ),
        steps=steps_after_search(config.folder, best_model(config, result.best), None),
    )


def _best_line(
    config: NasConfig, best: TrialRecord, noted: Mapping[str, Any], metric: Metric
) -> str:
    scores = [metric.format_value(best.values[metric.name])]
    if "test_accuracy" in noted:
        scores = _with_intervals(best, noted)
    return (
        f"best: {metric.name} {', '.join(scores)}, {best.values['parameters']:,.0f} parameters; "
        f"measured {noted['measured']} of {noted['different'] or noted['configurations']:,} "
        f"architectures; {config.folder}{where_model_is(config, best)}"
    )


def _with_intervals(best: TrialRecord, noted: Mapping[str, Any]) -> list[str]:
    """The accuracy on validation and on test rows."""
    return [
        f"{share:.2%} ({LEVEL_TEXT} interval {_format_interval(noted[f'{kind}_interval_95'])}) on "
        f"{noted[f'{kind}_rows']} {kind} rows"
        for kind, share in (
            ("validation", best.values["accuracy"]),
            ("test", noted["test_accuracy"]),
        )
    ]


def _note(validation: int, test: str) -> str:
    """Returns the note below the table."""
    return (
        f"validation: {validation} of the training rows, which no trial was trained on. Trials are "
        "chosen by them, so that the accuracy of the best is likely too high there. "
        f"test: {test}, used for reporting only; best.json has the accuracy of the "
        f"best on them. Intervals are Wilson's, at {LEVEL_TEXT}."
    )


def _labeled(rows: Rows) -> int:
    """How many labels count in an accuracy."""
    return len(counted(rows.labels))


def _format_interval(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.2%} to {interval[1]:.2%}"


def _row(search: Search, trial: TrialRecord, metric: Metric, count: int | None) -> dict[str, Any]:
    """A line of the table.

    Args:
        search: has the space.
        trial: trial of the line.
        metric: metric of the trials.
        count: number of validation rows; None where a function of the user judges.
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
    """The best architecture, with its accuracy on rows that the search has not seen.

    Its model is trained again where `config.folder` has none.
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
            f"{message}: training it again, for its test accuracy", highlight=False, markup=False
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
    """The best architecture and how it was found."""
    found, space = subject.found, subject.search.space
    combinations = math.prod(map(len, found.fields.values()))
    return {
        "choices": dict(space.folded(best.config)),
        "values": dict(best.values),
        "key": best.key,
        "compression": subject.config.compression,
        "measured": len(result.measured),
        "configurations": space.size,
        "different": found.num_distinct() if combinations <= MOST_COUNTED else None,
    }


def export(config: NasConfig, chosen: Config) -> dict[str, Any]:
    """An architecture is a model, not a way to compress one.

    Raises:
        ConfigError: always; it says where the model is.
    """
    raise ConfigError(
        f"an architecture is no setting of `chop compress`: the best models are in "
        f"{config.folder}/best, and MaseGraph.from_checkpoint reads them."
    )


JOB = SearchJob(NasConfig.JOB_NAME, NasConfig, NasSubject, report, export)
"""Behind `chop search nas`."""
