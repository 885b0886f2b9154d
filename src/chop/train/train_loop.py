"""Training loop with a learning-rate schedule, and evaluation, for the short runs of a search."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from chop.errors import ConfigError, check_known
from chop.kernels.matmul_precision import matmul_precision
from chop.nn import cached_weights
from chop.train.feed import Feed, eval_mode, module_mode
from chop.train.metric import Metric
from chop.train.model_io import batch_loss, read_answers
from chop.train.rows import Rows, rows_per_batch, take_split
from chop.train.tasks import Task

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

Progress = str | Callable[[float], None] | None
"""The label of a progress bar, a function that takes the share that is done, or none."""
EVALUATED = 256
"""Rows of a step of `evaluate` at most."""
SCHEDULES = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
}


def fit(
    model: nn.Module,
    dataset: DatasetDict | Dataset | Rows,
    *,
    epochs: int = 1,
    lr: float = 1e-3,
    batch_size: int = 64,
    weight_decay: float = 0.01,
    schedule: str = "cosine",
    warmup: float = 0.1,
    max_grad_norm: float = 1.0,
    seed: int = 0,
    device: str | torch.device | None = None,
    progress: Progress = None,
    on_step: Callable[[int, int], None] | None = None,
    task: str | Task | None = None,
) -> list[float]:
    """Trains `model` in place with AdamW; frozen parameters stay as they are.

    Args:
        model: see `chop.train.model_io`.
        dataset: what `read_rows` takes, with labels, texts tokenized; of a mapping of splits, its
            `train`.
        epochs: passes over the rows; 0 does nothing.
        lr: the largest learning rate, reached at the end of `warmup`.
        batch_size: rows of a step.
        weight_decay: of AdamW, on matrices and filters only: neither biases nor learned scales.
        schedule: of the learning rate after the warm-up: `constant`, or down to 0 along `linear`
            or `cosine`.
        warmup: share of all steps, 0 to 1, in which the learning rate rises.
        max_grad_norm: the gradient's norm is clipped to it.
        seed: of the order of the rows and of dropout; the global generators are left as they
            were. Equal seeds give equal weights on the same machine.
        device: where to train; default, where the model is. The model stays there.
        progress: the label of a progress bar, or a function that is called with the share of the
            steps that are done; None shows none.
        on_step: called before each optimizer step, gradients in place, with its number from 1
            and the number of all steps; see `chop.train.GradualPruning`.
        task: says which loss: a name of `chop.train.TASKS`, or a `Task`; default, that of the
            labels, see `chop.train.tasks.infer_task`.
    Returns: the mean loss of each epoch. Each module's mode (`train`, `eval`) is restored.
    Raises:
        ConfigError: wrong columns, an unknown schedule or task, labels that do not fit it, or
            nothing to train.
    """
    check_known(schedule, SCHEDULES, "unknown schedule")
    feed = Feed(model, take_split(dataset, "train"), batch_size, task, device)
    trainable = _trainable(model)
    optimizer = torch.optim.AdamW(_parameter_groups(trainable, weight_decay), lr=lr)
    rate = _rate(SCHEDULES[schedule], warmup, max(1, epochs * feed.steps))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    losses = []
    with (
        module_mode(model, training=True),
        _seeded(seed, feed.device) as order,
        _bar(progress, epochs * feed.steps) as tick,
    ):
        for epoch in range(epochs):
            total = torch.zeros((), device=feed.device)
            batches = feed.outputs(shuffle=order)
            for step, (output, labels) in enumerate(batches, epoch * feed.steps + 1):
                loss = batch_loss(output, labels, feed.task)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(trainable, max_grad_norm)
                if on_step is not None:
                    on_step(step, epochs * feed.steps)
                optimizer.step()
                scheduler.step()
                total += loss.detach() * len(labels)
                tick()
            losses.append(total.item() / len(feed.rows))
        optimizer.zero_grad()
    return losses


def fit_and_report(
    model: nn.Module,
    train: Rows,
    training: Mapping[str, Any],
    report: Callable[[int, float], None] | None,
    value: Callable[[], float],
) -> None:
    """Trains a model in place, and reports its value after each epoch but the last.

    Args:
        model: model to train, in place.
        train: training rows.
        training: arguments of `fit`, `batch_size` among them.
        report: called with the number of epochs that have ended and the value; None reports none.
        value: judges the model as it is.
    """
    steps = math.ceil(len(train) / training["batch_size"])

    def after_each_epoch(step: int, of: int) -> None:
        # Called before a step: the first of an epoch sees what the one before has learned.
        if report is not None and step > 1 and (step - 1) % steps == 0:
            report((step - 1) // steps, value())

    fit(model, train, **training, on_step=after_each_epoch)


def evaluate(
    model: nn.Module,
    dataset: DatasetDict | Dataset | Rows,
    *,
    batch_size: int | None = None,
    metric: str | Metric | Callable[..., float] | None = None,
    device: str | torch.device | None = None,
    progress: Progress = None,
    task: str | Task | None = None,
) -> float:
    """The metric of `model` on labeled rows, in evaluation mode and without gradients.

    Quantized weights are rounded once, see `chop.nn.cached_weights`. Products of float32 are made
    in float32, whatever `torch.set_float32_matmul_precision` allows.

    Args:
        model: see `chop.train.model_io`.
        dataset: what `read_rows` takes, with labels, texts tokenized; of a mapping of splits, its
            `test`. `read_rows` of it spares reading it again at every call.
        batch_size: rows of a step; for texts, neighbors in length. Default: 256, and fewer where
            the logits of so many tokens are large, see `chop.train.rows.rows_per_batch`.
        metric: a name of the task's `metrics`, a `Metric`, or a function of predictions and
            labels; default, the task's own: accuracy of classes, R2 of numbers, perplexity of
            text.
        device: where to evaluate; default, where the model is. The model stays there.
        progress: the label of a progress bar, or a function that is called with the share of the
            steps that are done; None shows none.
        task: what the model is asked to do: a name of `chop.train.TASKS`, or a `Task`; default,
            that of the labels, see `chop.train.tasks.infer_task`.
    Raises:
        ConfigError: wrong columns, an unknown metric or task, or labels that do not fit it.
    """
    judged, predictions, labels = predict(
        model,
        dataset,
        batch_size=batch_size,
        metric=metric,
        device=device,
        progress=progress,
        task=task,
    )
    return judged.score(predictions, labels)


def predict(
    model: nn.Module,
    dataset: DatasetDict | Dataset | Rows,
    *,
    batch_size: int | None = None,
    metric: str | Metric | Callable[..., float] | None = None,
    device: str | torch.device | None = None,
    progress: Progress = None,
    task: str | Task | None = None,
) -> tuple[Metric, Tensor, Tensor]:
    """Returns what `evaluate` scores.

    Args:
        model: see `evaluate`.
        dataset: see `evaluate`.
        batch_size: see `evaluate`.
        metric: see `evaluate`.
        device: see `evaluate`.
        progress: see `evaluate`.
        task: see `evaluate`.

    Returns: the metric, and on the CPU predictions (K, ...) and labels (K, ...) as it takes them.
    """
    feed = Feed(model, take_split(dataset, "test"), batch_size or EVALUATED, task, device)
    if batch_size is None:
        feed.batch_size = rows_per_batch(model, feed.rows, feed.task, EVALUATED)
    judged = feed.task.with_metric(metric)
    predictions, labels = [], []
    with (
        torch.no_grad(),
        matmul_precision("highest"),
        cached_weights(model),
        eval_mode(model),
        _bar(progress, feed.steps) as tick,
    ):
        for output, expected in feed.outputs():
            answers, expected = judged.compare(
                read_answers(output, judged, len(expected)), expected
            )
            found, right = judged.metric.read(answers, expected)
            predictions.append(found)
            labels.append(right)
            del output, answers  # as in `Feed.outputs`
            tick()
    return judged.metric, torch.cat(predictions).cpu(), torch.cat(labels).cpu()


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise ConfigError("nothing to train: every parameter of the model is frozen.")
    return trainable


def _parameter_groups(trainable: list[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    return [
        {"params": [p for p in trainable if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.dim() <= 1], "weight_decay": 0.0},
    ]


def _rate(schedule: Callable[[float], float], warmup: float, steps: int) -> Callable[[int], float]:
    rising = int(warmup * steps)

    def rate(step: int) -> float:
        if step < rising:
            return (step + 1) / (rising + 1)
        return schedule((step - rising) / max(1, steps - rising))

    return rate


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[torch.Generator]:
    """Dropout draws from the global generators: they are seeded here and put back after."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield torch.Generator().manual_seed(seed)


@contextmanager
def _bar(progress: Progress, steps: int) -> Iterator[Callable[[], None]]:
    if progress is None:
        yield lambda: None
    elif isinstance(progress, str):
        from chop.runs.progress import labeled_bar

        with labeled_bar(progress, steps) as tick:
            yield tick
    else:
        done = itertools.count(1)
        yield lambda: progress(next(done) / steps)
