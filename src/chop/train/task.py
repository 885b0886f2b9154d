"""Task: comparison of outputs with labels, training loss, and metric.

Shapes: B rows, C classes, K compared answers.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from chop.base.notices import assume, get_logger
from chop.base.plugins import Registry
from chop.config import check_fields
from chop.errors import ConfigError, check_known, describe
from chop.train.metric import Metric, expected_labels, predictions_of_task
from chop.train.user_code import user_code

log = get_logger(__name__)

IGNORED = -100
"""Label of a position that is excluded from losses and metrics."""

FROM_MINUS_ONE = "if your classes begin at -1, add 1 to the labels; otherwise, "
LEAVE_OUT = (
    f"classes are numbered from 0. Remove rows without a label, or label them {IGNORED}, which "
    "loss and metric ignore."
)
SIGNS = "got the labels -1 and 1; classes are numbered from 0: use (labels + 1) // 2."
LOGIT_FUNCTIONS = ("argmax", "softmax", "log_softmax", "sigmoid", "topk", "cross_entropy")
"""Functions of logits by name, which have no meaning for predicted classes."""
SCORED = {"roc_auc_score", "average_precision_score", "log_loss", "top_k_accuracy_score"}
"""Functions of scikit-learn that take scores or probabilities of classes."""
SOFT = "pass the classes of the rows, labels.argmax(1)."
SUM_TOLERANCE = 0.011
"""Largest difference of a sum of probabilities from 1, as rounding to two decimals makes."""
INT8_ENDS = (-128, 127)
Pair = tuple[Tensor, Tensor]
"""Answers and labels to compare; the first dimension of both is K."""
Labels = Tensor | list[Tensor]
"""Labels of rows: a tensor, or a list if rows differ in length."""
JUDGED = "untold"
"""Name of the task of a model with a user-supplied judge and no named task."""


def _as_they_are(answers: Tensor, labels: Tensor) -> Pair:
    return answers, labels


def _last_size(logits: Tensor) -> int:
    """Returns the size of the last dimension."""
    return logits.shape[-1]


@dataclass(frozen=True)
class Task:
    """Kind of problem that a model solves.

    Attributes:
        name: name for users.
        metric: the main metric.
        loss: (answers, labels) -> mean training loss, a scalar.
        compare: (logits, labels) of a batch -> compared answers and labels.
        is_categorical: true if answers are logits with classes in the last dimension, so entropies
            are defined.
        takes_model_loss: true if the model's own loss replaces `loss`.
        labels_from: column used as labels if there are none.
        output_loss: (output, labels) -> mean loss, a scalar; a user function that takes the raw
            output of the model and replaces `loss`.
        reads_all: true if answers are all numbers that the model returns for a row, (B, D);
            otherwise they are logits.
        fits: returns true if logits and labels may belong to the task, for messages.
        classes: returns the number of classes of logits.
        void: second ignored label in addition to `IGNORED`, if there are fewer classes.
        is_one_class: returns true if expected answers, in the form of the metric, are a single
            class, which makes metrics meaningless.
        one_class_hint: sentence on its most common cause.
        heads: returns the number of outputs that a model needs for labels; None leaves the model
            unchanged.
        takes_names: true if labels may be texts or folder names.
        auto_task: kind of model in transformers; default, a classifier of texts or images.
        inferred_note: assumption to report if the task was inferred from the labels.
        parts: task of each output by name, for multi-output models.
        bind: (task, output, labels, parts of the labels) -> the task with the output shapes of a
            model, required before use; None if not needed.
        layout: `chop.train.outputs.Layout` of a bound multi-output task.
        read: (output, rows) -> answers (B, W) of several outputs; default, reads logits.
        metrics: further metrics by name.
        soft_loss: loss against a teacher's outputs, `chop.train.distillation.soft_losses.SoftLoss`;
            default, the KL divergence if answers are categorical, else none.
        summary: phrase for help that describes the answers.
    """

    name: str
    metric: Metric
    loss: Callable[[Tensor, Tensor], Tensor]
    compare: Callable[[Tensor, Tensor], Pair] = _as_they_are
    is_categorical: bool = False
    takes_model_loss: bool = False
    labels_from: str | None = None
    output_loss: Callable[[Any, Tensor], Tensor] | None = None
    reads_all: bool = False
    fits: Callable[[Tensor, Tensor], bool] | None = field(default=None, repr=False)
    classes: Callable[[Tensor], int] = field(default=_last_size, repr=False)
    void: int | None = None
    is_one_class: Callable[[Tensor], bool] | None = field(default=None, repr=False)
    one_class_hint: str = ""
    heads: Callable[[Labels], int] | None = field(default=None, repr=False)
    takes_names: bool = False
    auto_task: str | None = None
    inferred_note: str = ""
    parts: Mapping[str, Task] = field(default_factory=dict, repr=False)
    bind: Callable[[Task, Any, Tensor, Any], Task] | None = field(default=None, repr=False)
    layout: Any = field(default=None, repr=False)
    read: Callable[[Any, int], Tensor] | None = field(default=None, repr=False)
    metrics: Mapping[str, Metric] = field(default_factory=dict, repr=False)
    soft_loss: Callable[[Tensor, Tensor, Tensor, float], Tensor] | None = field(
        default=None, repr=False
    )
    summary: str = field(default="", repr=False)

    @property
    def can_train(self) -> bool:
        """True if there is a loss for training."""
        return self.output_loss is not None or self.name != JUDGED

    def with_metric(self, metric: str | Metric | Callable[..., float] | None) -> Task:
        """Returns the task with another metric.

        Args:
            metric: a name, a `Metric`, or a function (predictions, labels) -> float of which higher
                is better, except for errors and losses of scikit-learn and for metrics whose
                `higher_is_better` is False. The function gets the predictions of the task's own
                metric. If its first argument is called `y_true` or `labels`, it gets the labels
                first, as functions of scikit-learn do.
        Raises:
            ConfigError: if the task has no metric with this name, or the value is none of these.
        """
        if metric is None:
            return self
        known = {**self.metrics, self.metric.name: self.metric}
        if isinstance(metric, str):
            check_known(metric, known, f"task '{self.name}': unknown metric")
            return dataclasses.replace(self, metric=known[metric])
        if not isinstance(metric, Metric):
            if not callable(metric):
                raise ConfigError(
                    "metric: expected a name, a Metric, or a function of predictions and labels, "
                    f"got {describe(metric)}."
                )
            name = getattr(metric, "__name__", type(metric).__name__)
            metric = Metric(name, metric, higher_is_better=_is_higher_better(metric))
        check_fields(metric, "Metric")
        if metric.predict is predictions_of_task:
            self._check_takes_classes(metric)
            own = self.metric.expect if metric.expect is expected_labels else metric.expect
            metric = dataclasses.replace(metric, predict=self.metric.predict, expect=own)
        if not any(metric.score is each.score for each in known.values()):
            score = partial(_number, metric.name, metric.score, _takes_labels_first(metric.score))
            metric = dataclasses.replace(metric, score=score)
        return dataclasses.replace(self, metric=metric)

    def _check_takes_classes(self, metric: Metric) -> None:
        """Raises ConfigError for a function of scikit-learn that needs scores, not classes."""
        plain = getattr(metric.score, "func", metric.score)  # functools.partial
        name = getattr(plain, "__name__", "")
        is_known = getattr(plain, "__module__", "").split(".")[0] == "sklearn"
        if not (self.is_categorical and is_known and name in SCORED):
            return
        direction = ", higher_is_better=False" * name.endswith("_loss")
        advice = (
            f"pass chop.train.Metric('{metric.name}', {name}, predict=lambda logits, labels: "
            f"logits.double().softmax(-1){direction})."
        )
        if name == "roc_auc_score" and "roc_auc" in self.metrics:
            advice = "pass metric='roc_auc'."
        raise ConfigError(
            f"metric '{metric.name}': it needs scores and would get classes; {advice}"
        )

    def check_labels(self, labels: Tensor | list[Tensor]) -> None:
        """Checks that labels are classes, independently of a model.

        Labels are whole numbers from 0, except `IGNORED` and `void`. At least one label must be a
        class.

        Raises:
            ConfigError: if a label is not a class, or no label counts.
        """
        if self.layout is not None:
            for name, part in self.layout.split(labels).items():
                self.parts[name].check_labels(part)
        if not self.is_categorical or not len(labels):
            return
        flat = _flat(labels)
        if flat.is_floating_point() and bool((flat != flat.round()).any()):
            soft = are_probabilities(labels)
            advice = SOFT if soft else "use task 'regression' for numbers."
            raise ConfigError(f"task '{self.name}': the labels have fractions; {advice}")
        if not len(flat) or (int(flat.min()) >= 0 and self.void is None):
            return
        is_ignored = (flat == IGNORED) if self.void is None else _are_in(flat, IGNORED, self.void)
        wrong = ((flat < 0) & ~is_ignored).nonzero()[:, 0]
        is_of_rows = isinstance(labels, Tensor) and labels.dim() == 1
        if is_of_rows and set(flat.unique().tolist()) == {-1, 1}:
            raise ConfigError(f"task '{self.name}': {SIGNS}")
        if len(wrong):
            ends = torch.tensor([row.numel() for row in labels]).cumsum(0)
            row = int(torch.searchsorted(ends, wrong[0].cpu(), right=True))
            advice = FROM_MINUS_ONE * _begin_below(flat) + LEAVE_OUT
            if (int(flat.min()), int(flat.max())) == INT8_ENDS:
                advice = "they are -128 to 127, as classes beyond 127 in int8 are: use int64."
            raise ConfigError(
                f"task '{self.name}': row {row} has the label {int(flat[wrong[0]])}, one of "
                f"{len(wrong)} negative labels; {advice}"
            )
        if bool(is_ignored.all()):
            raise ConfigError(
                f"task '{self.name}': every label is {self._uncounted}, which loss and metric "
                "ignore; expected classes, numbered from 0."
            )
        counted = flat[~is_ignored]
        has_void = self.void is not None and bool((flat == self.void).any())
        if has_void and int(counted.min()) == int(counted.max()):
            assume(
                f"task '{self.name}': the labels are {int(counted[0])} and {self._uncounted}, and "
                f"the latter do not count.{self.one_class_hint}",
                log,
            )

    def check(
        self, logits: Tensor, labels: Tensor | list[Tensor], batch: Tensor | None = None
    ) -> None:
        """Checks that labels are within the classes of the logits.

        Args:
            logits: outputs of the model.
            labels: labels of all rows.
            batch: labels of the rows of `logits`; default, all.
        Raises:
            ConfigError: if a label is no class.
        """
        if not self.is_categorical or not len(labels):
            return
        flat, count = _flat(labels), self.classes(logits)
        if self.void is not None and self.void >= count:
            flat = flat[flat != self.void]
        largest = int(flat.max()) if len(flat) else 0
        if largest >= count:
            raise beyond_classes(self, largest, logits, labels, batch)

    @property
    def _uncounted(self) -> str:
        return str(IGNORED) if self.void is None else f"{IGNORED} or {self.void}"


TASKS: Registry[Task] = Registry("tasks", kind=Task, own_name=lambda task: task.name)
"""Tasks by name: those of `chop.train.tasks` and those of other packages."""
OTHER_NAMES = {
    **dict.fromkeys(
        (
            "audio-classification",
            "image-classification",
            "multiclass",
            "multiclass-classification",
            "natural-language-inference",
            "sentence-classification",
            "sentiment-analysis",
            "seq-cls",
            "sequence-classification",
            "single-label-classification",
            "text-classification",
        ),
        "classification",
    ),
    "binary-classification": "binary",
    **dict.fromkeys(
        (
            "multi-label",
            "multi-label-classification",
            "multilabel-classification",
            "multilabel-indicator",
        ),
        "multilabel",
    ),
    **dict.fromkeys(("continuous", "sentence-similarity"), "regression"),
    **dict.fromkeys(
        ("multi-output", "multiclass-multioutput", "multitask", "multi-task"), "multioutput"
    ),
    **dict.fromkeys(
        ("ner", "named-entity-recognition", "pos", "token-cls"), "token-classification"
    ),
    **dict.fromkeys(
        ("clm", "language-modeling", "language-modelling", "lm", "text-generation"),
        "causal-lm",
    ),
    **dict.fromkeys(("image-segmentation", "semantic-segmentation"), "segmentation"),
}
"""Names of tasks in Hugging Face's pipelines and configurations, PEFT and scikit-learn."""


def check_task_name(name: str, what: str) -> None:
    """Raises ConfigError, with the nearest task, if a name is not one of `TASKS`."""
    usual = name.casefold().replace("_", "-").replace(" ", "-")
    if name not in TASKS and (own := OTHER_NAMES.get(usual)):
        raise ConfigError(f"{what} '{name}': its name in chop is '{own}'.")
    check_known(name, TASKS, what)


def _is_higher_better(function: Callable[..., float]) -> bool:
    """Returns the direction of a metric: its own attribute `higher_is_better` as in torchmetrics.

    Functions of scikit-learn that end in `_error` or `_loss` are lower for better models, see "The
    scoring parameter" in its user guide.
    """
    own = getattr(function, "higher_is_better", None)
    if own is not None:
        return bool(own)
    plain = getattr(function, "func", function)  # functools.partial
    is_known = getattr(plain, "__module__", "").split(".")[0] == "sklearn"
    return not (is_known and getattr(plain, "__name__", "").endswith(("_error", "_loss")))


def _takes_labels_first(function: Callable[..., Any]) -> bool:
    """Returns true for functions (y_true, y_pred), as in scikit-learn, by their first argument."""
    try:
        first = next(iter(inspect.signature(function).parameters), "")
    except (TypeError, ValueError):  # some of those written in C have no signature
        return False
    return first in ("y_true", "labels_true", "labels", "targets", "target", "references")


class _RefusedLogits(TorchFunctionMode):
    """Refuses functions of logits that a user-supplied metric calls on predicted classes."""

    def __init__(self, name: str, predictions: Tensor) -> None:
        super().__init__()
        self._name, self._classes = name, None if predictions.is_floating_point() else predictions

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        function = getattr(func, "__name__", "")
        classes = self._classes
        if classes is not None and function in LOGIT_FUNCTIONS and args and args[0] is classes:
            raise ConfigError(
                f"metric '{self._name}': {function} takes logits, and a metric gets the predicted "
                f"classes, of shape {tuple(classes.shape)}: leave {function} out, or pass "
                f"chop.train.Metric('{self._name}', function, predict=lambda logits, labels: "
                "logits)."
            )
        return func(*args, **(kwargs or {}))


def _number(
    name: str,
    metric: Callable[[Tensor, Tensor], Any],
    takes_labels_first: bool,
    predictions: Tensor,
    labels: Tensor,
) -> float:
    """Returns the number of a user-supplied metric.

    Raises:
        ConfigError: if it returns something else.
    """
    with user_code(f"metric '{name}'", metric), _RefusedLogits(name, predictions):
        value = metric(labels, predictions) if takes_labels_first else metric(predictions, labels)
    try:
        if isinstance(value, str | bytes):
            raise TypeError("a text")
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of several numbers
        got = f"{type(value).__name__} {str(value)[:40]}"
        raise ConfigError(f"metric '{name}': expected one number, got {got}.") from None


def _flat(labels: Tensor | list[Tensor]) -> Tensor:
    if isinstance(labels, Tensor):
        return labels.flatten()
    return torch.cat([row.flatten() for row in labels])


def _begin_below(flat: Tensor) -> bool:
    """Returns true if -1 may be a class: the only negative label, and as common as others."""
    values, counts = flat.unique(return_counts=True)
    is_least = int(values[0]) == -1 and len(values) > 1
    return is_least and 2 * int(counts[0]) * (len(values) - 1) >= int(counts[1:].sum())


def _are_in(flat: Tensor, *values: int) -> Tensor:
    return torch.isin(flat, flat.new_tensor(values))


def unfit(task: str, wanted: str, logits: Tensor, labels: Tensor) -> ConfigError:
    """Builds the error for logits and labels whose shapes do not fit a task."""
    return ConfigError(
        f"task '{task}': expected logits of {wanted}, got {tuple(logits.shape)} and "
        f"{tuple(labels.shape)}; {suggested(logits, labels, task)}"
    )


def beyond_classes(
    task: Task, label: int, logits: Tensor, labels: Labels, batch: Tensor | None = None
) -> ConfigError:
    """Builds the error for a label outside the classes of the logits; see `Task.check`."""
    count = task.classes(logits)
    numbers = f"{count} number{'s' * (count > 1)}"
    if task.classes is not _last_size:
        numbers = f"{count} classes"
    given = labels if isinstance(labels, Tensor) else _flat(labels)
    given = given if batch is None else batch
    classes = _flat(labels)[_flat(labels) >= 0]
    if label == count > 1 and int(classes.min()) == 1:
        hint = "classes are numbered from 0, and these begin at 1: subtract 1 from the labels."
    elif 1 < len(numbers_of_classes := classes.unique()) <= count and given.dim() == 1:
        hint = (
            f"the {len(numbers_of_classes)} classes are numbered up to {label}: number them from 0 "
            "as in training, such as numpy.unique(labels, return_inverse=True)[1]."
        )
    else:
        hint = suggested(logits, given, task.name)
    return ConfigError(
        f"task '{task.name}': got the label {label}, and the model returns {numbers}, for the "
        f"classes 0 to {count - 1}; {hint}"
    )


def suggested(logits: Tensor, labels: Tensor, tried: str) -> str:
    """Suggests tasks other than `tried` that the logits and labels may belong to."""
    if logits.dim() == 0 or len(logits) != len(labels):
        rows = len(logits) if logits.dim() else 1
        return f"the model returned {rows} rows for {len(labels)}: rows are its first dimension."
    is_by_class = logits.dim() > 2 and logits.shape == labels.shape and labels.shape[1] > 1
    if is_by_class and has_one_class(labels):
        return "labels are one-hot along dimension 1: pass their classes, labels.argmax(1)."
    if tried == "classification" and logits.dim() == 3 and labels.dim() == 1:
        return (
            f"the model returns scores at {logits.shape[1]} positions of each row: return one set "
            "per row, such as those of the last position, output[:, -1]."
        )
    fitting = [x.name for x in TASKS.values() if x.fits and x.fits(logits, labels)]
    names = [f"'{name}'" for name in fitting if name != tried]
    if not names:
        return f"the tasks are {', '.join(TASKS)}."
    return f"logits and labels like these are of task {' or '.join(names)}: --task says which."


def are_one_hot(labels: Labels) -> bool:
    """Returns true if each row of labels (B, C) has one 1 and zeros."""
    if not isinstance(labels, Tensor) or labels.dim() != 2 or labels.shape[1] < 2:
        return False
    return has_one_class(labels)


def has_one_class(labels: Tensor) -> bool:
    """Returns true if labels (B, C, ...) have one 1 and zeros along C."""
    is_bit = (labels == 0) | (labels == 1)
    return bool(is_bit.all()) and bool((labels.sum(1) == 1).all())


def are_probabilities(labels: Labels) -> bool:
    """Returns true if each row of labels (B, C) has shares of C classes, which sum to 1."""
    if not isinstance(labels, Tensor) or labels.dim() != 2 or labels.shape[1] < 2:
        return False
    is_one = (labels.double().sum(1) - 1).abs() < SUM_TOLERANCE
    return bool((labels >= 0).all()) and bool(is_one.all())


def one_class(labels: Tensor) -> bool:
    """Returns true if all labels that count are the same class."""
    counted = labels[labels != IGNORED]
    return bool(len(counted)) and bool((counted == counted[0]).all())
