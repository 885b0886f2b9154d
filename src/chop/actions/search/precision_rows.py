"""Rows of a precision search: selection of search rows, within memory for their answers."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from chop.actions.search.settings import PrecisionConfig
from chop.base.notices import assume
from chop.train import Rows
from chop.train.evaluator import Evaluator
from chop.workloads.workload import Workload

LEAST_VALIDATION = 100
"""Minimum number of validation rows; with fewer, training rows measure trials."""
ANSWER_BYTES = 2**29
"""Memory for float32 answers in bytes, of the float model and as much for a trial."""
KL = "kl"
"""KL divergence of the answers from the float model's."""


class SearchRows(NamedTuple):
    """Rows that measure trials.

    Attributes:
        workload: workload whose training rows exclude these rows, if they are validation rows.
        rows: the rows.
        about: number and kind of the rows, in words.
    """

    workload: Workload
    rows: Rows
    about: str


def get_rows(workload: Workload, most: int, has_training: bool) -> SearchRows:
    """Returns the rows that measure trials: unseen by training, if possible.

    Args:
        workload: model and rows.
        most: maximum number of rows.
        has_training: True if trials are trained, which makes training rows useless as a measure.
    """
    split = workload
    if workload.judge is not None:
        rows = fitting(workload.train.spread(most), workload)
        about = f"{len(rows)} training rows, used only for the first trials"
        return SearchRows(workload, rows, about)
    if workload.validation is not None or len(workload.train) > 1:
        split = workload.with_validation()
    validation = split.validation
    count = 0 if validation is None else len(validation)
    if validation is not None and (count >= LEAST_VALIDATION or has_training):
        rows = fitting(validation.spread(most), workload)
        seen = " taken from the training rows, which the model may have seen"
        rows_used = f"{len(rows)} validation rows{seen if split.has_seen_validation else ''}"
        return SearchRows(split, rows, rows_used)
    rows = fitting(workload.train.spread(most), workload)
    rows_used = (
        f"{len(rows)} training rows, on which scores are too optimistic ({count} validation rows "
        "are too few)"
    )
    return SearchRows(workload, rows, rows_used)


def goals_for(config: PrecisionConfig, workload: Workload) -> PrecisionConfig:
    """Replaces the goal kl by loss for tasks whose outputs are not classes."""
    task = workload.task
    if task.is_categorical or workload.judge is not None or config.goals != (KL,):
        return config
    assume(f"The goal is loss: kl needs classes, and the task is '{task.name}'. See --goals.")
    return dataclasses.replace(config, goals=("loss",))


def fitting(rows: Rows, workload: Workload) -> Rows:
    """Returns rows, spread evenly, whose answers fit into `ANSWER_BYTES`.

    Vocabularies, and classes per pixel, allow fewer rows.
    """
    places = sum(labels.numel() for labels in rows.labels) / max(len(rows), 1)
    if not workload.task.is_categorical or places <= 1:
        return rows
    # A user's model does not declare its number of classes, so an answer is measured.
    answers = Evaluator(workload.model, rows.spread(1), task=workload.task).logits()
    return rows.spread(max(1, int(ANSWER_BYTES / (4 * places * answers.shape[-1]))))
