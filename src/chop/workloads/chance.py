"""Check that the float model is better than a constant answer, so that formats can be compared."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import torch
from rich.console import Console
from torch import Tensor

from chop.base.notices import assume, in_words
from chop.errors import ConfigError
from chop.models.own import describe_drawn_weights
from chop.train.evaluator import Evaluator
from chop.train.feed import Feed, eval_mode
from chop.train.intervals import FEW_ROWS, Score
from chop.train.metric import CONSTANTS, GUESSED, LOWER_IS_BETTER
from chop.train.model_io import read_answers
from chop.train.task import JUDGED
from chop.train.tasks import BINARY, MULTILABEL
from chop.workloads.settings import WorkloadConfig
from chop.workloads.workload import Workload

log = logging.getLogger(__name__)
LOOKED_AT = 1000
"""Number of test rows for jobs that do not measure the float model themselves."""
COMMON = 0.75
"""Share of one class above which accuracy ignores the other classes."""
RARE_CLASS_METRICS = ("balanced_accuracy", "f1", "roc_auc")
"""Metrics that also judge rare classes."""
SEVERAL_CLASSES = "Provide rows of at least two classes in this split; --force continues."
"""Way out if a split has rows of one class."""
PROBABILITIES = (
    "The outputs are all from 0 to 1, as after a sigmoid, and logits are expected, which are "
    "compared with 0: leave out the sigmoid."
)
"""Warning of a model with a sigmoid at its end."""
ROUNDING = 1e-9
"""Tolerance of a correlation with a constant, which is not exactly 0."""


def check_float_model(workload: Workload, config: WorkloadConfig) -> None:
    """Measures the float model on at most `LOOKED_AT` test rows, see `check_scores`."""
    if workload.judge is not None:
        check_judged(workload, config)
        return
    if workload.task.name == JUDGED:  # rows without labels
        return
    rows = workload.test.spread(LOOKED_AT)
    check_scores({"test": workload.score(workload.model, rows)}, workload, config)


def check_answers(
    evaluator: Evaluator, logits: Tensor, workload: Workload, config: WorkloadConfig
) -> None:
    """Checks the float model's answers that a search has computed, in the order of `logits`."""
    predictions, labels = workload.task.metric.read(logits, evaluator.labels)
    score = workload.compute_score(predictions.cpu(), labels.cpu(), len(evaluator))
    check_scores({"search": score}, workload, config)


def check_judged(workload: Workload, config: WorkloadConfig) -> None:
    """Checks the float model's number from a user's function."""
    check_scores({"": workload.score(workload.model, workload.test)}, workload, config)


def check_scores(scores: Mapping[str, Score], workload: Workload, config: WorkloadConfig) -> None:
    """Reports uninformative scores of the float model, and raises an error for them.

    A model counts as better than a constant answer if its 95 % interval is above it. Otherwise a
    format that breaks the model cannot be distinguished from one that preserves it.

    Args:
        scores: scores of the float model, by name of the rows.
        workload: the model and its rows.
        config: its `force` reports without an error.
    Raises:
        ConfigError: if a score is NaN, or no better than that of a constant answer.
    """
    for name, score in scores.items():
        if workload.judge is not None and not math.isfinite(score.value):
            raise ConfigError(
                f"{workload.judge.title}: returned {score.value} for the float model, so that "
                "formats cannot be compared with it."
            )
        if math.isnan(score.value):
            raise ConfigError(
                f"the {workload.task.metric.name} of the float model on the "
                f"{workload.get_name(name)} rows is NaN, "
                "so that formats cannot be compared with it: check its outputs on these rows."
            )
    few = [
        _counted(name, score, workload)
        for name, score in scores.items()
        if 0 < score.rows < FEW_ROWS
    ]
    if few:
        text = f"Few rows: {' and '.join(few)}; use at least {FEW_ROWS} to distinguish formats."
        Console().print(text, highlight=False, markup=False)
    has_logits = workload.judge is not None or not _are_probabilities(workload)
    hint = "" if has_logits else PROBABILITIES
    if hint:
        assume(hint, log)
    # Rows of one class are named before what else may be wrong.
    ordered = sorted(scores.items(), key=lambda each: not each[1].has_one_class)
    for name, score in ordered:
        for output, constant in score.useless.items():
            metric = workload.task.metrics[output]
            assume(
                f"Float {output} {metric.format_value(score.parts[output])} on "
                f"{_counted(name, score, workload)} is no better than a constant answer, "
                f"{metric.format_value(constant)}: a format that breaks this output would look as "
                "good as float.",
                log,
            )
        reason = _why_uninformative(name, score, workload)
        if reason and not config.force:
            way_out = SEVERAL_CLASSES if score.has_one_class else _way_out(workload, config)
            raise ConfigError(f"{reason} {hint}{' ' * bool(hint)}{way_out}")
        if reason:
            assume(f"{reason[0].upper()}{reason[1:]} Continuing because of --force.")
            Console().print(
                f"{reason} Continuing because of --force.", highlight=False, markup=False
            )


def warn_about_large_drop(score: Score, workload: Workload, max_drop: float) -> None:
    """Warns if a constant answer is within `max_drop` of the float model."""
    metric, constant = workload.task.metric, score.constant
    is_informative = constant is not None and metric.gain(score.value, constant) > ROUNDING
    if constant is not None and is_informative and metric.within(constant, score.value, max_drop):
        Console().print(
            f"--max-drop {max_drop:g} allows {metric.format_drop(max_drop)}: a constant answer, "
            f"{metric.format_value(constant)}, is within that of float's "
            f"{metric.format_value(score.value)}, and so is any format. --max-drop 0.01 allows "
            f"{metric.format_drop(0.01)}.",
            highlight=False,
            markup=False,
        )


def _counted(name: str, score: Score, workload: Workload) -> str:
    """Returns the number and name of the rows; rows of a user's function have no name."""
    return " ".join(filter(None, (str(score.rows), workload.get_name(name), "rows")))


def _why_uninformative(name: str, score: Score, workload: Workload) -> str | None:
    metric, rows = workload.task.metric, _counted(name, score, workload)
    if score.has_one_class:
        return (
            f"all labels of the {rows} have one class, so that {metric.name} is meaningless."
            f"{workload.task.one_class_hint}"
        )
    if score.constant is None or math.isnan(score.constant):
        return None
    end = score.value
    if score.interval is not None:
        end = score.interval[0 if metric.higher_is_better else 1]
    if metric.gain(end, score.constant) > ROUNDING:
        return None
    beyond = "no better than"
    if metric.gain(score.value, score.constant) > ROUNDING:
        beyond = "within its interval no better than"
    known = CONSTANTS.get(metric.predict)
    about = GUESSED if known is None else known.about
    if metric.constant is not None:
        about = "constant answers"
    constant = f"{about}, {metric.format_value(score.constant)}"
    return (
        f"float {metric.name} {score.format(metric)} on {rows} is {beyond} {constant}: a format "
        "that breaks the model would look as good as float."
    )


def _are_probabilities(workload: Workload) -> bool:
    """Returns true for yes-or-no answers whose outputs for some test rows are all from 0 to 1."""
    if workload.task.name not in (BINARY, MULTILABEL):
        return False
    rows, model = workload.test.spread(FEW_ROWS), workload.model
    with torch.no_grad(), eval_mode(model):
        batches = Feed(model, rows, len(rows), workload.task, workload.device).outputs()
        answers = [read_answers(x.output, workload.task, len(x.labels)) for x in batches]
    numbers = torch.cat([each.flatten() for each in answers])
    is_constant = bool((numbers == numbers[0]).all())  # as zeroed weights make it
    return not is_constant and bool(((numbers >= 0) & (numbers <= 1)).all())


def _way_out(workload: Workload, config: WorkloadConfig) -> str:
    drawn = describe_drawn_weights(workload.name)
    if drawn and config.weights is None and not config.train_epochs:
        return (
            f"No --weights were given, so {drawn} Give --weights FILE, load weights in the code, "
            "or train it (--train-epochs); --force continues. In Python, chop.train.fit trains it."
        )
    scaling = " (--pixel-mean, --pixel-std)" if "pixel_values" in workload.test.columns else ""
    rare, metric = "", workload.task.metric
    if (
        workload.judge is None
        and metric.higher_is_better
        and metric.name not in workload.task.metrics
    ):
        rare = f"If lower {metric.name} is better, pass {LOWER_IS_BETTER}. "
    if workload.chance is not None and workload.chance >= COMMON:
        names = " or ".join(name for name in RARE_CLASS_METRICS if name in workload.task.metrics)
        rare += (
            f"{workload.chance:.1%} of the {workload.get_name('test')} rows have one class: "
            f"--metric {names} also counts the other classes. "
        )
    if workload.task.name == "regression":
        scaling += " (--label-mean and --label-std for labels that were standardized for training)"
    order = " and their order (--class-names)" * bool(workload.class_names)
    longer = " longer" * bool(config.train_epochs)
    return rare + (
        f"Check the weights, the labels{order} and the preprocessing{scaling}, provide more "
        f"rows, or train the model{longer} (--train-epochs); --force continues. In Python, "
        "chop.train.fit trains it." + in_words(workload.assumptions)
    )
