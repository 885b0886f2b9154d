"""Refuses float models that are no better than a constant answer: no format could lose anything."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from rich.console import Console
from torch import Tensor

from chop.base.notices import assume
from chop.base.trust import TIMM
from chop.errors import ConfigError
from chop.models import is_own
from chop.train.evaluator import Evaluator
from chop.train.intervals import FEW_ROWS, Score
from chop.train.metric import CONSTANTS, GUESSED
from chop.workloads.settings import WorkloadConfig
from chop.workloads.workload import Workload

log = logging.getLogger(__name__)
LOOKED_AT = 1000
"""Test rows that a job looks at which does not measure the float model itself."""
COMMON = 0.75
"""With such a share of one class, accuracy says little of the others."""
OF_RARE = ("balanced_accuracy", "f1", "roc_auc")
"""Metrics that judge a rare class as well."""
ROUNDING = 1e-9
"""A correlation with a constant is not 0 to the last bit."""


def check_float_model(workload: Workload, config: WorkloadConfig) -> None:
    """Measures the float model on at most `LOOKED_AT` test rows, see `check_scores`."""
    if workload.judge is not None:
        check_judged(workload, config)
        return
    rows = workload.test.spread(LOOKED_AT)
    check_scores({"test": workload.score(workload.model, rows)}, workload, config)


def check_answers(
    evaluator: Evaluator, logits: Tensor, workload: Workload, config: WorkloadConfig
) -> None:
    """The same of answers that a search has of the float model, in the order of `logits`."""
    predictions, labels = workload.task.metric.read(logits, evaluator.labels)
    score = workload.compute_score(predictions.cpu(), labels.cpu(), len(evaluator))
    check_scores({"search": score}, workload, config)


def check_judged(workload: Workload, config: WorkloadConfig) -> None:
    """Checks the number that a function of the user gives for the float model."""
    check_scores({"": workload.score(workload.model, workload.test)}, workload, config)


def check_scores(scores: Mapping[str, Score], workload: Workload, config: WorkloadConfig) -> None:
    """Says which numbers of the float model are uninformative, and stops at them.

    A model is better than a constant answer where its 95 % interval is: a format that breaks a
    model which is not cannot be distinguished from one that keeps it.

    Args:
        scores: of the float model, by the name of the rows.
        workload: the model and its rows.
        config: its `force` says the same and goes on.
    Raises:
        ConfigError: a number is NaN, or no better than that of a constant answer.
    """
    for name, score in scores.items():
        if math.isnan(score.value):
            if workload.judge is not None:
                raise ConfigError(
                    f"{workload.judge.title}: gave NaN for the float model, with which no format "
                    "can be compared."
                )
            raise ConfigError(
                f"the {workload.task.metric.name} of the float model on the "
                f"{workload.get_name(name)} rows is NaN, "
                "with which no format can be compared: look at its outputs on these rows."
            )
    few = [
        _counted(name, score, workload)
        for name, score in scores.items()
        if 0 < score.rows < FEW_ROWS
    ]
    if few:
        text = f"Few rows: {' and '.join(few)}; at least {FEW_ROWS} tell formats apart that differ."
        Console().print(text, highlight=False, markup=False)
    for name, score in scores.items():
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
            raise ConfigError(f"{reason} {_way_out(workload, config)}")
        if reason:
            assume(f"{reason[0].upper()}{reason[1:]} Going on, because of --force.")
            Console().print(
                f"{reason} Going on, because of --force.", highlight=False, markup=False
            )


def warn_about_large_drop(score: Score, workload: Workload, max_drop: float) -> None:
    """Warns where a constant answer keeps within `max_drop` of the float model."""
    metric, constant = workload.task.metric, score.constant
    is_informative = constant is not None and metric.gain(score.value, constant) > ROUNDING
    if constant is not None and is_informative and metric.within(constant, score.value, max_drop):
        Console().print(
            f"--max-drop {max_drop:g} allows {metric.format_drop(max_drop)}: a constant answer, "
            f"{metric.format_value(constant)}, keeps within it of float's "
            f"{metric.format_value(score.value)}, and so does any format; --max-drop 0.01 allows "
            f"{metric.format_drop(0.01)}.",
            highlight=False,
            markup=False,
        )


def _counted(name: str, score: Score, workload: Workload) -> str:
    """So many rows with what they are; those of a function of the user's have no name."""
    return " ".join(filter(None, (str(score.rows), workload.get_name(name), "rows")))


def _why_uninformative(name: str, score: Score, workload: Workload) -> str | None:
    metric, rows = workload.task.metric, _counted(name, score, workload)
    if score.has_one_class:
        return (
            f"all labels of the {rows} are one class: no {metric.name} on them tells anything."
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
        beyond = "not better, beyond its interval, than"
    known = CONSTANTS.get(metric.predict)
    about = GUESSED if known is None else known.about
    if metric.constant is not None:
        about = "constant answers"
    constant = f"{about}, {metric.format_value(score.constant)}"
    return (
        f"float {metric.name} {score.format(metric)} on {rows} is {beyond} {constant}: a format "
        "that breaks the model would look as good as float."
    )


def _way_out(workload: Workload, config: WorkloadConfig) -> str:
    is_drawn = is_own(workload.name) and not workload.name.startswith(TIMM)
    if is_drawn and config.weights is None and not config.train_epochs:
        return (
            f"No --weights were given, so '{workload.name}' has the numbers that its code gave it, "
            "which are random unless that code reads a file: give --weights FILE, or train it "
            "(--train-epochs); --force goes on."
        )
    scaling = " (--pixel-mean, --pixel-std)" if "pixel_values" in workload.test.columns else ""
    rare = ""
    if workload.chance is not None and workload.chance >= COMMON:
        names = " or ".join(name for name in OF_RARE if name in workload.task.metrics)
        rare = (
            f"{workload.chance:.1%} of the {workload.get_name('test')} rows are of one class: "
            f"--metric {names} judges the others, too. "
        )
    if workload.task.name == "regression":
        scaling += " (--label-mean and --label-std of labels that were standardized for training)"
    assumed = [each.text.rstrip(".") for each in workload.assumptions if not each.about]
    return rare + (
        f"Look at the weights, the labels and how inputs are prepared{scaling}, give more rows, or "
        "train the model (--train-epochs); --force goes on."
        + "".join(f" Assumed: {text}." for text in assumed)
    )
