"""Judging a model: by the metric of its task or a function of the user's; its loss likewise."""

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
from chop.train.rows import task_for
from chop.train.tasks import UNTOLD_TASK


def build_judge(
    evaluate: Judge | Callable[[nn.Module], Any] | str | None,
    metric: str | Metric | Callable[..., float] | None,
    lower_is_better: bool,
) -> Judge | None:
    """The judge that a function, or the text `file.py:fn`, is; None of none.

    Args:
        evaluate: the function.
        metric: name of its number. Default: the function's.
        lower_is_better: lower numbers are better.
    Raises:
        ConfigError: it is no function of a model, or the metric is more than a name.
    """
    if evaluate is None or isinstance(evaluate, Judge):
        if lower_is_better:
            raise ConfigError("lower_is_better: is about the number of evaluate=, a function.")
        return evaluate
    if metric is not None and not isinstance(metric, str):
        raise ConfigError("metric: with evaluate it names the number; expected a text.")
    code = evaluate if isinstance(evaluate, str) else ""
    function = function_of_file(code, "evaluate") if isinstance(evaluate, str) else evaluate
    return Judge.of(function, metric, lower_is_better=lower_is_better, code=code)


def task_with(
    asked: Task | None,
    rows: Rows,
    metric: str | Metric | Callable[..., float] | None,
    judge: Judge | None,
    loss: Callable[[Any, Tensor], Tensor] | str | None,
) -> Task:
    """The task with what judges a model and what it is trained by.

    Args:
        asked: None takes what the labels are, unless a function judges, which may need none.
        rows: have the labels.
        metric: metric of the task. Default: its own.
        judge: a function of the user's; its metric wins.
        loss: likewise, or the text `file.py:fn`; None leaves the task's.
    """
    if judge is None:
        found = task_for(asked, rows)
        if asked is None and found.inferred_note:
            assume(found.inferred_note)
        task = found.with_metric(metric)
    else:
        task = replace(asked or UNTOLD_TASK, metric=judge.metric)
    if loss is None:
        return task
    code = loss if isinstance(loss, str) else ""
    function = function_of_file(code, "loss") if isinstance(loss, str) else loss
    return replace(task, output_loss=checked_loss(function, code), takes_model_loss=False)
