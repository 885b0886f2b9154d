"""Training loop with a learning-rate schedule, and evaluation, for short runs of a search."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from chop.base.notices import assume, get_logger
from chop.captured.module import CapturedModule
from chop.config import with_checked_names
from chop.errors import ConfigError, check_known, describe
from chop.kernels.matmul_precision import matmul_precision
from chop.nn import cached_weights
from chop.nn.packed import PackedOperator
from chop.private.torch_api import BATCH_NORMS_OVER_ROWS
from chop.train.calibration import range_check
from chop.train.distillation.loss import labeled_feed, training_loss
from chop.train.distillation.settings import Distillation
from chop.train.feed import Answered, Feed, eval_mode, module_mode
from chop.train.metric import Metric
from chop.train.model_io import read_answers, warn_about_probabilities
from chop.train.rows import Rows, rows_per_batch, take_split
from chop.train.tasks import Task
from chop.train.user_code import user_code

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

log = get_logger(__name__)

Progress = str | Callable[[float], None] | None
"""Label of a progress bar, a function that takes the finished share, or None."""
STEP_LOGIT_BYTES = 2**28
"""Maximum logits of a forward in training; several tensors of this size exist at once."""
EVALUATED = 256
"""Maximum batch size of `evaluate`."""
DIVERGED = "training diverged: the loss is NaN in epoch %d. Use a lower learning rate."
WORSE = (
    "training diverged: the mean loss of the last epoch is %.3g, and was %.3g in the first step, "
    "before any update. Use a lower learning rate."
)
FINITE = (0.0, sys.float_info.max, "a finite number, 0 or more")
RANGES = {
    "lr": FINITE,
    "weight_decay": FINITE,
    "warmup": (0.0, 1.0, "a share of the steps, 0 to 1"),
    "max_grad_norm": (sys.float_info.min, math.inf, "more than 0; math.inf for no limit"),
}
"""Lowest and highest value of settings of `fit`, and their description."""
SCHEDULES = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
}


@with_checked_names
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
    distill: Any = None,
) -> list[float]:
    """Trains `model` in place with AdamW. Frozen parameters stay unchanged.

    Args:
        model: see `chop.train.model_io`.
        dataset: labeled rows with texts tokenized, in any form that `read_rows` takes. A mapping of
            splits gives its `train`.
        epochs: passes over the rows; 0 does nothing.
        lr: the largest learning rate, reached at the end of `warmup`.
        batch_size: rows per step. If the logits of a step of a language model exceed
            `STEP_LOGIT_BYTES`, gradients of parts of it are accumulated, with equal weight of rows.
        weight_decay: weight decay of AdamW, applied to matrices and filters, not to biases and
            learned scales.
        schedule: learning-rate schedule after the warm-up: `constant`, or decay to 0 by `linear` or
            `cosine`.
        warmup: share of all steps, 0 to 1, in which the learning rate rises.
        max_grad_norm: maximum norm of the gradient, enforced by clipping.
        seed: seed of the row order and of dropout. The state of the global generators is restored.
            Equal seeds give equal weights on the same machine.
        device: training device, where the model stays; default, the model's device.
        progress: label of a progress bar, or a function called with the finished share of the
            steps; None shows no bar.
        on_step: called before each optimizer step, after the gradients are computed, with the
            step's number from 1 and the total; see `chop.train.GradualPruning`.
        task: determines the loss: a name of `chop.train.TASKS`, or a `Task`; default, inferred from
            the labels, see `chop.train.tasks.infer_task`.
        distill: teacher (a module, a graph, or the path of a checkpoint), `Distillation`, or a
            mapping of its fields. Rows then need no labels.
    Returns: the mean loss of each epoch. The mode (`train`, `eval`) of each module is restored.
    Warns: the loss becomes NaN, or is clearly worse in the last epoch than before any update.
    Raises:
        ConfigError: if a number is out of range, columns are wrong, the schedule or task is
            unknown, labels do not fit the task, no parameter is trainable, or a teacher does not
            fit.

    Example:
        >>> X = torch.randn(64, 2)
        >>> losses = fit(torch.nn.Linear(2, 2), (X, (X[:, 0] > 0).long()), epochs=5, lr=0.1)
        >>> losses[-1] < losses[0]
        True
    """
    check_known(schedule, SCHEDULES, "unknown schedule")
    _check_numbers(
        epochs, seed, lr=lr, weight_decay=weight_decay, warmup=warmup, max_grad_norm=max_grad_norm
    )
    if not (on_step is None or callable(on_step)):
        raise ConfigError(f"on_step: expected a function or None, got {describe(on_step)}.")
    settings = Distillation.read(distill)
    rows = take_split(dataset, "train")
    feed, has_labels = labeled_feed(model, rows, batch_size, task, device, settings)
    feed.batch_size = _rows_at_once(feed)
    parts = batch_size // feed.batch_size
    if parts == 1:
        feed.batch_size = batch_size = _size_without_single_rows(feed)
    steps = math.ceil(len(feed.rows) / batch_size)
    trainable = _trainable(model)
    optimizer = torch.optim.AdamW(_parameter_groups(trainable, weight_decay), lr=lr)
    rate = _rate(SCHEDULES[schedule], warmup, max(1, epochs * steps))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    losses = []
    means: list[Tensor] = []
    with (
        module_mode(model, training=True),
        _seeded(seed, feed.device) as order,
        _bar(progress, epochs * feed.steps) as tick,
        training_loss(feed, settings, has_labels) as compute_loss,
    ):
        optimizer.zero_grad()
        for epoch in range(epochs):
            total = torch.zeros((), device=feed.device)
            del means[1:]
            sums = _summed_losses(feed, order, parts, trainable, compute_loss, tick)
            for step, (summed, count) in enumerate(sums, epoch * steps + 1):
                total += summed
                means.append(summed / count)
                nn.utils.clip_grad_norm_(trainable, max_grad_norm)
                if on_step is not None:
                    with user_code("on_step", on_step):
                        on_step(step, epochs * steps)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(total.item() / len(feed.rows))
            if math.isnan(losses[-1]) and not any(map(math.isnan, losses[:-1])):
                log.warning(DIVERGED, epoch + 1)
    if on_step is None:  # which may make the task harder, as gradual pruning does
        _warn_if_worse(means, steps)
    return losses


def _warn_if_worse(means: Sequence[Tensor], steps: int) -> None:
    """Warns if the last epoch is worse than the first step, beyond the spread of its steps.

    `means` has the mean losses of the first step and of the `steps` of the last epoch. In a first
    epoch, the first step is one of them.
    """
    if not means:
        return
    first, last = float(means[0]), torch.stack([*means[-steps:]]).double()
    mean, spread = float(last.mean()), float(last.std(correction=0))
    if 0 < first < float(last.min()) and mean > max(2 * first, first + 2 * spread):
        log.warning(WORSE, mean, first)


def _check_numbers(epochs: int, seed: int, **reals: float) -> None:
    """Raises ConfigError for numbers that torch would reject in other words, or train with."""
    is_whole = isinstance(epochs, Integral) and not isinstance(epochs, bool)
    if not is_whole or epochs < 0:
        raise ConfigError(f"epochs: expected a whole number, 0 or more, got {describe(epochs)}.")
    is_whole = isinstance(seed, Integral) and not isinstance(seed, bool)
    if not is_whole or not 0 <= seed < 2**63:
        raise ConfigError(
            f"seed: expected a whole number from 0 to 2^63 - 1, got {describe(seed)}."
        )
    for name, value in reals.items():
        lowest, highest, expected = RANGES[name]
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if not is_number or not lowest <= value <= highest:
            raise ConfigError(f"{name}: expected {expected}, got {describe(value)}.")


def fit_and_report(
    model: nn.Module,
    train: Rows,
    training: Mapping[str, Any],
    report: Callable[[int, float], None] | None,
    value: Callable[[], float],
) -> None:
    """Trains a model in place and reports its value after each epoch except the last.

    Args:
        model: model to train.
        train: training rows.
        training: arguments of `fit`.
        report: called with the number of finished epochs and the value; optional.
        value: evaluates the current model.
    """

    def after_each_epoch(step: int, of: int) -> None:
        steps = of // training.get("epochs", 1)
        # Called before a step: the first of an epoch sees what the one before has learned.
        if report is not None and step > 1 and (step - 1) % steps == 0:
            report((step - 1) // steps, value())

    fit(model, train, **training, on_step=after_each_epoch)


@with_checked_names
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
    """Returns the metric of `model` on labeled rows, in evaluation mode and without gradients.

    Quantized weights are rounded once, see `chop.nn.cached_weights`. Float32 products run at full
    precision, regardless of `torch.set_float32_matmul_precision`.

    Args:
        model: see `chop.train.model_io`.
        dataset: labeled rows with texts tokenized, in any form that `read_rows` takes. A mapping of
            splits gives its `test`. Pass the result of `read_rows` to avoid reading it in every
            call.
        batch_size: rows per step, for texts of similar length. Default: 256, fewer if the logits of
            all tokens are large, see `chop.train.rows.rows_per_batch`.
        metric: a name of the task's `metrics`, a `Metric`, or a function of predictions and labels;
            default, the task's own: accuracy for classes, R2 for numbers, perplexity for text.
        device: evaluation device, where the model stays; default, the model's device.
        progress: label of a progress bar, or a function called with the finished share of the
            steps; None shows no bar.
        task: a name of `chop.train.TASKS`, or a `Task`; default, inferred from the labels, see
            `chop.train.tasks.infer_task`.
    Raises:
        ConfigError: if columns are wrong, the metric or task is unknown, or labels do not fit the
            task.

    Example:
        >>> evaluate(torch.nn.Identity(), (torch.eye(2), torch.tensor([0, 1])))  # logits as inputs
        1.0
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


@with_checked_names
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
    """Returns the predictions that `evaluate` scores, with their labels and metric.

    Args:
        model: see `evaluate`.
        dataset: see `evaluate`.
        batch_size: see `evaluate`.
        metric: see `evaluate`.
        device: see `evaluate`.
        progress: see `evaluate`.
        task: see `evaluate`.

    Returns: the metric, and on the CPU predictions (K, ...) and labels (K, ...) in its form.
    """
    feed = Feed(
        model,
        take_split(dataset, "test"),
        EVALUATED if batch_size is None else batch_size,
        task,
        device,
    )
    if batch_size is None:
        feed.batch_size = rows_per_batch(model, feed.rows, feed.task, EVALUATED)
    judged = feed.task.with_metric(metric)
    predictions, labels = [], []
    with (
        torch.no_grad(),
        matmul_precision("highest"),
        cached_weights(model),
        eval_mode(model),
        range_check(model),
        _bar(progress, feed.steps) as tick,
    ):
        for output, labels_of_batch, _ in feed.outputs():
            answers, expected = judged.compare(
                read_answers(output, judged, len(labels_of_batch)), labels_of_batch
            )
            predicted, right = judged.metric.read(answers, expected)
            predictions.append(predicted)
            labels.append(right)
            del output, answers  # as in `Feed.outputs`
            tick()
    return judged.metric, torch.cat(predictions).cpu(), torch.cat(labels).cpu()


def _rows_at_once(feed: Feed) -> int:
    """Returns the number of rows of a forward in training, a divisor of the batch size."""
    if feed.task.labels_from is None:  # parts of a batch would change the averages of batch norms
        return feed.batch_size
    size = feed.batch_size
    most = rows_per_batch(feed.model, feed.rows, feed.task, size, STEP_LOGIT_BYTES)
    return max(part for part in range(1, most + 1) if size % part == 0)


def _size_without_single_rows(feed: Feed) -> int:
    """Returns a batch size at which no batch of batch normalization has one row.

    It is the batch size of the feed if this one fits, otherwise the next larger one.
    """
    rows, size = len(feed.rows), feed.batch_size
    while size > 1 and rows > 1 and rows % size == 1:
        size += 1
    if size == feed.batch_size or not any(
        isinstance(x, BATCH_NORMS_OVER_ROWS) for x in feed.model.modules()
    ):
        return feed.batch_size
    assume(
        f"batch_size is {size} instead of {feed.batch_size}: the last batch of {rows} rows would "
        "have one row, which batch normalization cannot train on.",
        log,
    )
    return size


def _summed_losses(
    feed: Feed,
    order: torch.Generator,
    parts: int,
    trainable: list[nn.Parameter],
    compute_loss: Callable[[Answered], Tensor],
    tick: Callable[[], None],
) -> Iterator[tuple[Tensor, int]]:
    """Yields the summed loss and number of the rows of each step, after its gradients are computed.

    Args:
        feed: batches, of which `parts` make a step.
        order: generator of the row order.
        parts: number of forwards in a step.
        trainable: parameters whose gradients are accumulated. The caller resets them.
        compute_loss: mean loss of a batch.
        tick: called after each forward.
    """
    total, rows = torch.zeros((), device=feed.device), 0
    for number, batch in enumerate(feed.outputs(shuffle=order), 1):
        loss, count = compute_loss(batch), len(batch.labels)
        if number == 1:
            warn_about_probabilities(batch.output, feed.task)
        if not torch.is_grad_enabled():
            raise ConfigError("fit: gradients are off; call it outside of torch.no_grad().")
        if not loss.requires_grad:
            raise ConfigError(
                "the output of the model has no gradient, so that it cannot be trained: leave out "
                "detach() and torch.no_grad() in its forward."
            )
        (loss if parts == 1 else loss * count).backward()
        total, rows = total + loss.detach() * count, rows + count
        del batch, loss  # with their logits
        tick()
        if number % parts == 0 or number == feed.steps:
            if parts > 1:
                _divide_gradients(trainable, rows)
            yield total, rows
            total, rows = torch.zeros((), device=feed.device), 0


def _divide_gradients(trainable: list[nn.Parameter], rows: int) -> None:
    for parameter in trainable:
        if parameter.grad is not None:
            parameter.grad /= rows


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        frozen = "all parameters of the model are frozen; model.requires_grad_() unfreezes them"
        has_some = next(model.parameters(), None) is not None
        reason = frozen if has_some else "the model has no parameters"
        if any(isinstance(module, PackedOperator) for module in model.modules()):
            graph = "mg, _ = pack_transform_pass(mg, {'unpack': True})"
            if not isinstance(model, CapturedModule):
                path = "'runs/compress/model'"  # the default of `chop.compress`
                graph = f"mg = MaseGraph.from_checkpoint({path}), {graph}"
            reason = (
                "packed layers store their weights as codes; unpack the graph of the checkpoint "
                f"and train mg.model: {graph}"
            )
        raise ConfigError(f"nothing to train: {reason}.")
    if any(x.is_inference() for x in (*model.parameters(), *model.buffers())):
        raise ConfigError(
            "the model's weights are inference tensors, made under torch.inference_mode(), which "
            "cannot be trained: pass copy.deepcopy(model), made outside of it."
        )
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
    """Seeds the global generators, which dropout draws from, and restores them afterwards."""
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
    elif not callable(progress):
        raise ConfigError(
            f"progress: got "
            f"{describe(progress)}, expected a label of the bar, such as 'training', a "
            "function, or None for no bar."
        )
    else:
        done = itertools.count(1)

        def report() -> None:
            with user_code("progress", progress):
                progress(next(done) / steps)

        yield report
