"""Evaluation on rows: compares the answers of a model with those of its float model.

Shapes: K answers per row (one, or one per token), C classes or tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from chop.actions.evaluate.models import Judged
from chop.base.files.library_errors import get_reason
from chop.errors import CheckpointError
from chop.kernels.matmul_precision import matmul_precision
from chop.runs import Journal
from chop.statistics.intervals import Interval, wilson
from chop.train.evaluator import divergences
from chop.train.feed import Feed
from chop.train.intervals import compute_interval, interval_over_rows
from chop.train.judge import Judge
from chop.train.metric import Metric
from chop.train.model_io import LABELS, read_answers
from chop.train.rows import Rows, rows_per_batch
from chop.train.tasks import Task

JOURNAL = "answers.jsonl"
"""File of answers in the output folder."""
Columns = dict[str, list[Any]]
"""Journal entry of a row: a list of length K by name, see `_columns`."""


@dataclass(frozen=True)
class Measured:
    """Number with its 95 % confidence interval.

    Attributes:
        value: the number.
        interval: bounds, or None if unknown.
    """

    value: float
    interval: Interval | None


@dataclass(frozen=True)
class RowResult:
    """Results of a model on some rows.

    Attributes:
        rows: number of rows.
        answers: number of answers over all rows.
        metric: name of the task's metric.
        own: metric of the model.
        reference: metric of the float model. This and all following are None without one.
        kl: mean of KL(float || model) over the answers, in nats; None for numeric answers.
        same: share of answers (for images, of pixels) with the float model's largest logit.
        flips: share of answers that change from right to wrong or from wrong to right (Dutta et
            al., Accuracy is Not All You Need, arXiv:2407.09141, 2024); None for images, as are
            the following counts.
        lost: number of answers that change from right to wrong.
        won: number of answers that change from wrong to right.
        change: share of right answers minus that of the float model, paired over rows.
        outputs: metrics by output name, of the model and of the float model; None for models with
            one output.
    """

    rows: int
    answers: int
    metric: str
    own: Measured
    reference: Measured | None = None
    kl: Measured | None = None
    same: Measured | None = None
    flips: Measured | None = None
    lost: int | None = None
    won: int | None = None
    change: Measured | None = None
    outputs: tuple[Mapping[str, float], ...] | None = None


def measure_rows(
    judged: Judged,
    rows: Rows,
    batch_size: int,
    journal: Journal,
    identity: Mapping[str, Any],
    advance: Callable[[float], None] = lambda share: None,
) -> list[Columns]:
    """Runs both models on the same rows in batches; skips rows that the journal has.

    Args:
        judged: the models and their task.
        rows: rows to run on.
        batch_size: maximum rows per forward; large vocabularies use fewer.
        journal: journal of finished rows.
        identity: identity of models and rows in the journal.
        advance: callback with the finished share of the rows.
    Returns: the journal entry of each row, see `get_result`.
    """
    keys = [{**identity, "row": row} for row in range(len(rows))]
    missing = [row for row, key in enumerate(keys) if journal.find(key, _has_answers) is None]
    task = judged.workload.task
    size = rows_per_batch(judged.model, rows, task, batch_size)
    done = len(keys) - len(missing)
    for index in _by_length(rows, missing).split(size) if missing else ():
        for row, columns in zip(index.tolist(), _answers(judged, rows.take(index)), strict=True):
            journal.add(keys[row], columns)
        done += len(index)
        advance(done / len(keys))
    return [journal.get(key) for key in keys]


def judge_models(
    judged: Judged, judge: Judge, journal: Journal, identity: Mapping[str, Any], reference: str
) -> RowResult:
    """Scores a model and its float model with the user's function."""

    def score(model: nn.Module, key: Mapping[str, Any]) -> tuple[Measured, int]:
        entry = journal.find(key, _is_judged)
        if entry is None:
            rows, is_by_row = judge.rows(model)
            entry = journal.add(key, {"rows": rows.tolist(), "is_by_row": is_by_row})
        result = judge.compute_score(torch.tensor(entry["rows"]), entry["is_by_row"])
        return Measured(result.value, result.interval), result.rows

    own, count = score(judged.model, identity)
    other = None
    if judged.reference is not None:
        other, _ = score(judged.reference, {**identity, "model": reference})
    return RowResult(count, count, judge.name, own, other)


def _has_answers(entry: Mapping[str, Any]) -> bool:
    """Returns True if a journal entry has lists of equal length."""
    columns = entry.values()
    if not {"labels", "own"} <= entry.keys() or not all(isinstance(x, list) for x in columns):
        return False
    return len({len(column) for column in columns}) == 1


def _is_judged(entry: Mapping[str, Any]) -> bool:
    """Returns True if a journal entry has numbers of a user's function."""
    rows = entry.get("rows")
    is_flat = isinstance(rows, list) and all(isinstance(x, int | float) for x in rows)
    return is_flat and isinstance(entry.get("is_by_row"), bool)


def _by_length(rows: Rows, chosen: list[int]) -> Tensor:
    """Sorts rows by length, since rows of a batch are padded to the longest."""
    texts = [column for column in rows.columns.values() if isinstance(column, list)]
    order = sorted(chosen, key=lambda row: sum(len(column[row]) for column in texts))
    return torch.tensor(order, dtype=torch.long)


@torch.inference_mode()
def _answers(judged: Judged, rows: Rows) -> Iterator[Columns]:
    """Yields the journal entry of each row of a batch."""
    task = judged.workload.task
    feed = Feed(judged.model, rows, len(rows), task)
    ((fed, labels),) = feed.batches()
    with matmul_precision("highest"):
        own = _logits(judged.model, fed, task)
        other = None if judged.reference is None else _logits_like(judged.reference, rows, task)
    for row in range(len(rows)):
        one = slice(row, row + 1)
        theirs = None if other is None else task.compare(other[one], labels[one])[0]
        yield _columns(task, *task.compare(own[one], labels[one]), theirs)


def _logits_like(model: nn.Module, rows: Rows, task: Task) -> Tensor:
    """Returns the logits of a model that may need other columns."""
    ((fed, _),) = Feed(model, rows, len(rows), task).batches()
    return _logits(model, fed, task)


def _logits(model: nn.Module, fed: Mapping[str, Tensor], task: Task) -> Tensor:
    output = model(**{name: x for name, x in fed.items() if name != LABELS})
    return read_answers(output, task, len(next(iter(fed.values()))))


def _columns(task: Task, own: Tensor, labels: Tensor, reference: Tensor | None) -> Columns:
    """Returns lists of length K: labels, and the inputs of the metric for each model.

    For classes also: whether each model is right, whether both agree, and their KL divergence. For
    images, which have a class per pixel, the share and the mean over pixels.
    """
    predictions, expected = task.metric.read(own, labels)
    columns = {"labels": expected, "own": predictions}
    if reference is not None:
        columns["reference"] = task.metric.predict(reference, labels)
        if task.is_categorical:
            top, theirs = own.argmax(-1), reference.argmax(-1)
            same, apart = top == theirs, divergences(reference, own)
            if same.dim() > 1:
                same, apart = (x.flatten(1).double().mean(1) for x in (same, apart))
            else:
                columns |= {"right": top == labels, "reference_right": theirs == labels}
            columns |= {"same": same, "kl": apart}
    return {name: values.tolist() for name, values in columns.items()}


def get_result(entries: list[Columns], task: Task) -> RowResult:
    """Computes the result from the journal entries of rows.

    Args:
        entries: journal entry of each row, see `measure_rows`.
        task: task of the models.
    Raises:
        CheckpointError: if an entry is malformed, because the journal was edited.
    """
    sizes = [len(columns["labels"]) for columns in entries]
    try:
        column = {
            name: torch.tensor([x for row in entries for x in row[name]]) for name in entries[0]
        }
    except (TypeError, ValueError, KeyError, RuntimeError, OverflowError) as error:
        raise CheckpointError(
            f"{JOURNAL} in the output folder has malformed answers ({get_reason(error)}): "
            "remove it to run the rows again."
        ) from None
    metric, labels = task.metric, column["labels"]
    own = _score(metric, column["own"], labels, sizes)
    counts = len(entries), sum(sizes), metric.name, own
    outputs = None
    if metric.parts is not None:
        answers = [column[name] for name in ("own", "reference") if name in column]
        outputs = tuple(metric.parts(each, labels) for each in answers)
    if "reference" not in column:
        return RowResult(*counts, outputs=outputs)
    reference = _score(metric, column["reference"], labels, sizes)
    if "kl" not in column:
        return RowResult(*counts, reference, outputs=outputs)
    kl, same = column["kl"].double(), column["same"]
    apart = Measured(kl.mean().clamp(min=0).item(), _mean_over_rows(kl, sizes))
    if "right" not in column:
        return RowResult(
            *counts, reference, apart, Measured(same.mean().item(), _mean_over_rows(same, sizes))
        )
    right, was_right = column["right"], column["reference_right"]
    flips = share(right != was_right, sizes)
    return RowResult(
        *counts,
        reference,
        apart,
        share(same, sizes),
        flips,
        int((was_right & ~right).sum()),
        int((right & ~was_right).sum()),
        _change(right.double() - was_right.double(), flips, sizes),
    )


def _score(metric: Metric, predictions: Tensor, labels: Tensor, sizes: list[int]) -> Measured:
    value = metric.score(predictions, labels)
    return Measured(value, compute_interval(metric, predictions, labels, sizes))


def share(chosen: Tensor, sizes: list[int]) -> Measured:
    """Returns the share of chosen answers with its interval.

    The interval is Wilson's for rows with one answer each, and over rows if all or no answers are
    chosen; otherwise it is the bootstrap over rows.

    Args:
        chosen: bool (answers,).
        sizes: number of answers per row.
    """
    count = int(chosen.sum())
    value = count / max(len(chosen), 1)
    if set(sizes) == {1} or count in (0, len(chosen)):
        return Measured(value, wilson(value * len(sizes), len(sizes)))
    return Measured(value, interval_over_rows(lambda i: chosen[i].double().mean().item(), sizes))


def _change(changes: Tensor, flips: Measured, sizes: list[int]) -> Measured:
    """Returns the mean change; without flips its interval has the largest plausible share of them.

    Args:
        changes: float64 (answers,), 1 from wrong to right, -1 from right to wrong, otherwise 0.
        flips: share of changes other than 0.
        sizes: number of answers per row.
    """
    if flips.interval is None or flips.value:
        return Measured(changes.mean().item(), _mean_over_rows(changes, sizes))
    return Measured(0.0, (-flips.interval[1], flips.interval[1]))


def _mean_over_rows(values: Tensor, sizes: list[int]) -> Interval | None:
    return interval_over_rows(lambda i: values[i].mean().item(), sizes)
