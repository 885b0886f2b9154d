"""Rows of a precision search: those that trials are measured on, and how many answers fit."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from chop.actions.search.settings import PrecisionConfig
from chop.base.notices import assume
from chop.train import Rows
from chop.train.evaluator import Evaluator
from chop.workloads.workload import Workload

LEAST_VALIDATION = 100
"""With fewer validation rows trials are measured on training rows."""
ANSWER_BYTES = 2**29
"""Memory for answers in float32: the float model's are kept beside a trial's."""
KL = "kl"
"""Divergence of the answers from the float model's."""


class SearchRows(NamedTuple):
    """Rows that trials are measured on.

    Attributes:
        workload: without those rows among its training rows where they are validation rows.
        rows: the rows.
        about: number and kind of the rows, in words.
    """

    workload: Workload
    rows: Rows
    about: str


def get_rows(config: PrecisionConfig, workload: Workload) -> SearchRows:
    """Rows that measure trials: those that the model was not trained on, if there are any."""
    split = workload
    if workload.judge is not None:
        rows = fitting(workload.train.spread(config.search_rows), workload)
        about = f"{len(rows)} training rows, only for predicting a start"
        return SearchRows(workload, rows, about)
    if workload.validation is not None or len(workload.train) > 1:
        split = workload.with_validation()
    validation = split.validation
    count = 0 if validation is None else len(validation)
    if validation is not None and (count >= LEAST_VALIDATION or config.epochs):
        rows = fitting(validation.spread(config.search_rows), workload)
        seen = ", held out of training rows that the model may have seen elsewhere"
        rows_used = f"{len(rows)} validation rows{seen if split.has_seen_validation else ''}"
        return SearchRows(split, rows, rows_used)
    rows = fitting(workload.train.spread(config.search_rows), workload)
    rows_used = (
        f"{len(rows)} training rows, which the model has seen and answers better than others "
        f"({count} validation rows are too few)"
    )
    return SearchRows(workload, rows, rows_used)


def goals_for(config: PrecisionConfig, workload: Workload) -> PrecisionConfig:
    """The settings with the goal loss in the place of kl where outputs are no classes."""
    task = workload.task
    if task.is_categorical or workload.judge is not None or config.goals != (KL,):
        return config
    assume(f"Goal: loss, as kl needs classes, and the task is '{task.name}'. --goals says which.")
    return dataclasses.replace(config, goals=("loss",))


def fitting(rows: Rows, workload: Workload) -> Rows:
    """Those whose answers fit into `ANSWER_BYTES`, spread evenly.

    Of a vocabulary, or of classes for each pixel, fewer rows do.
    """
    places = sum(labels.numel() for labels in rows.labels) / max(len(rows), 1)
    if not workload.task.is_categorical or places <= 1:
        return rows
    # A model of one's own does not say how many classes it has; the size of an answer does.
    answers = Evaluator(workload.model, rows.spread(1), task=workload.task).logits()
    return rows.spread(max(1, int(ANSWER_BYTES / (4 * places * answers.shape[-1]))))
