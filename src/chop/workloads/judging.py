"""Evaluation and training objective: the task's metric and loss, or functions of the user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from chop.base.notices import assume
from chop.errors import ConfigError
from chop.models import function_of_file
from chop.train import (
    Metric,
    Rows,
    Task,
)
from chop.train.judge import Judge, checked_loss
from chop.train.metric import LOWER_IS_BETTER
from chop.train.rows import task_for
from chop.train.tasks import JUDGED_TASK


def build_judge(
    evaluate: Judge | Callable[[nn.Module], Any] | str | None,
    metric: str | Metric | Callable[..., float] | None,
    lower_is_better: bool,
) -> Judge | None:
    """Builds a judge from a function or `file.py:fn`; None if there is none.

    Args:
        evaluate: the function.
        metric: name of its number. Default: the function's.
        lower_is_better: True if smaller numbers are better.
    Raises:
        ConfigError: if it is not a function of a model, or the metric is more than a name.
    """
    if evaluate is None or isinstance(evaluate, Judge):
        if lower_is_better:
            raise ConfigError(
                "lower_is_better: applies only with evaluate=, a function; otherwise pass "
                f"metric={LOWER_IS_BETTER}."
            )
        return evaluate
    if metric is not None and not isinstance(metric, str):
        raise ConfigError("metric: with evaluate it names the number; expected a text.")
    code = evaluate if isinstance(evaluate, str) else ""
    function = function_of_file(code, "evaluate") if isinstance(evaluate, str) else evaluate
    return Judge.of(function, metric, lower_is_better=lower_is_better, code=code)


def build_task(
    requested: Task | None,
    rows: Rows,
    metric: str | Metric | Callable[..., float] | None,
    judge: Judge | None,
    loss: Callable[[Any, Tensor], Tensor] | str | None,
) -> Task:
    """Returns the task with the given metric, judge and loss.

    Args:
        requested: the task. None infers it from the labels; with a judge, rows may have none.
        rows: rows with labels.
        metric: metric of the task. Default: its own.
        judge: user's evaluation; its metric takes precedence.
        loss: loss function or `file.py:fn`; None uses the task's.
    """
    if judge is None:
        inferred = task_for(requested, rows)
        if requested is None and inferred.inferred_note:
            assume(inferred.inferred_note)
        task = inferred.with_metric(metric)
    else:
        task = replace(requested or JUDGED_TASK, metric=judge.metric)
    if loss is None:
        return task
    code = loss if isinstance(loss, str) else ""
    function = function_of_file(code, "loss") if isinstance(loss, str) else loss
    return replace(task, output_loss=checked_loss(function, code), takes_model_loss=False)
