"""Workload: a trained model with rows for training, calibration and test."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NotRequired, TypedDict

import torch
from torch import Tensor, nn

from chop import passes
from chop.base.files.limits import reached_limit
from chop.base.notices import Assumption, assume, collected_assumptions, warn_once
from chop.captured.module_tree import computed_tensors
from chop.captured.wrappers import check_has_values, check_is_module, check_is_unwrapped
from chop.config import convert, with_checked_names
from chop.data.load import HELD_OUT_SHARE, SPLIT_OFF, assume_split_off
from chop.errors import ConfigError, first_line
from chop.ir.graph import MaseGraph
from chop.models import builtin_model
from chop.train import (
    VALIDATION_SHARE,
    Metric,
    Rows,
    Task,
    evaluate,
    find_task,
    fit,
    load_trained,
    predict,
    read_rows,
    split_rows,
    usable_device,
)
from chop.train.calibration import example_inputs
from chop.train.distillation.settings import Distillation, describe_distillation
from chop.train.distillation.teacher import (
    Teacher,
    check_class_order,
    get_class_names,
    load_teacher,
)
from chop.train.dtypes import cast_inputs, cast_rows
from chop.train.feed import bound_task
from chop.train.given.frames import align_columns
from chop.train.intervals import Score, compute_interval, constant_score, counted, interval_note
from chop.train.judge import Judge
from chop.train.metrics import accuracy
from chop.train.task import JUDGED
from chop.train.tasks import CLASSIFICATION, JUDGED_TASK
from chop.train.text_labels import with_numbered_texts
from chop.train.train_loop import Progress
from chop.train.unlabeled import read_inputs
from chop.workloads.fingerprints import fingerprint_of_weights
from chop.workloads.judging import build_judge, build_task
from chop.workloads.probe import assume_scaled_logits, check_forward
from chop.workloads.repeated_rows import report_repeated_rows
from chop.workloads.settings import WorkloadConfig, short_name

CHECKPOINT_LR, CHECKPOINT_EPOCHS = 1e-4, 1

COLUMNS = (
    *("method", "format", "validation", "test", "bits", "quantized", "size_kb", "poor_fit"),
    *("unreached", "validation_interval_95", "test_interval_95", "left_alone"),
    *("width", "frac_width", "float", "PTQ", "QAT", "sparsity", "pruned", "fine-tuned"),
    *("loss", "kl", "parameters", "size_bytes", "graph", "seconds", "start", "varied", "part"),
    *("outputs", "integer_bits", "ranges", "method", "weights", "inputs", "table"),
)
"""Reserved names of columns, results and figures, which a metric cannot have."""


class Training(TypedDict):
    """Arguments of `chop.train.fit` for further training, stored as JSON in records.

    `distill` has the settings of a distillation, with a fingerprint of a teacher other than the
    float model.
    """

    epochs: int
    lr: float
    batch_size: int
    seed: int
    distill: NotRequired[dict[str, Any]]


@dataclass(frozen=True)
class Workload:
    """Trained model with its data.

    Attributes:
        model: in eval mode, on `device`.
        name: name of the model.
        dataset: name of the data set.
        train: rows for training and calibration.
        test: rows for reporting, never used for choices.
        device: device of all computation.
        tuning_epochs: training epochs that recover the loss from rounding or pruning.
        tuning_lr: maximum learning rate for that number of epochs.
        validation: rows for choices, disjoint from `train`; None if there are none.
        has_seen_validation: True if the model may have been trained on them elsewhere.
        task: task of the model.
        judge: user's function that evaluates models instead of the task's metric; the rows are then
            inputs for calibration, training and timing.
        teacher: model whose outputs the trained model learns (distillation); None uses `model`.
        teacher_name: name of `teacher` for reports; "" for a module.
        assumptions: assumptions of the job, for its report.
        input_columns: columns of a table that are the model's input vector, in its order.
        class_names: names of the classes, in the order of the model's outputs; none if the labels
            are numbers.
    """

    model: nn.Module
    name: str
    dataset: str
    train: Rows
    test: Rows
    device: torch.device
    tuning_epochs: int
    tuning_lr: float
    validation: Rows | None = None
    has_seen_validation: bool = False
    task: Task = CLASSIFICATION
    judge: Judge | None = None
    teacher: nn.Module | None = None
    teacher_name: str = ""
    assumptions: Sequence[Assumption] = ()
    input_columns: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises ConfigError if the metric's name is not valid for columns and files."""
        name = self.task.metric.name
        advice = "chop.train.Metric(name, score)" if self.judge is None else "metric=NAME"
        if not re.fullmatch(r"[\w-]+", name):
            raise ConfigError(
                f"metric '{name}': expected a name of letters, digits, _ and -, which columns and "
                f"files get; pass {advice}."
            )
        if name in COLUMNS:
            raise ConfigError(
                f"metric '{name}': tables and files use that name already; pass {advice} with "
                "another."
            )

    @property
    def title(self) -> str:
        """`MODEL on DATA`, for tables and figures."""
        return f"{short_name(self.name)} on {short_name(self.dataset)}"

    @classmethod
    @with_checked_names
    def of(
        cls,
        model: nn.Module,
        train: Any,
        test: Any = None,
        *,
        validation: Any = None,
        task: str | Task | None = None,
        metric: str | Metric | Callable[..., float] | None = None,
        name: str | None = None,
        dataset: str = "own data",
        device: str | None = None,
        evaluate: Judge | Callable[[nn.Module], Any] | str | None = None,
        lower_is_better: bool = False,
        loss: Callable[[Any, Tensor], Tensor] | str | None = None,
        teacher: Any = None,
    ) -> Workload:
        """Builds a workload from your own trained model and data, for any job with a `workload`.

        Args:
            model: the model; the workload has a copy.
            train: rows for calibration and training, as for `chop.train.read_rows`: `(X, y)`, a
                TensorDataset, a DataLoader, or a data set. With `evaluate`, also rows without
                labels, as for `chop.quantize`.
            test: rows for reporting. Default: a fifth of `train`, which reports mention, as the
                model may have been trained on them; with `evaluate`, those of `train`.
            validation: rows for choices; by default a share of `train` if a job needs some.
            task: a name in `chop.train.TASKS` or a `Task`; by default inferred from the labels.
            metric: evaluation metric; by default the task's own. Its name is used for columns and
                files: letters, digits, `_` and `-`.
            name: name of the model in tables; its class by default.
            dataset: name of the data in tables.
            device: a GPU by default, if there is one.
            evaluate: function that evaluates a model of any task: it takes the model in evaluation
                mode, and returns a number, or one per row, whose mean counts. Rows then need no
                labels, and `metric` is the name of the number.
            lower_is_better: True if smaller numbers of `evaluate` are better.
            loss: function that training minimizes: it takes the model's output and the labels of a
                batch, and returns their mean loss; by default that of the task.
            teacher: model for jobs with `distill`: a module, a graph, or a path as for
                `chop.train.distillation.teacher.load_teacher`; by default the model itself.
        Raises:
            ConfigError: if rows cannot be read or do not fit the model, the task or metric is
                unknown, or the metric's name is not valid for columns and files.
        """
        check_is_module(model, "model")
        check_is_unwrapped(model, "model")
        name, dataset = convert(name, str | None, "name"), convert(dataset, str, "dataset")
        requested = None if task is None else find_task(task)
        judge = build_judge(evaluate, metric, lower_is_better)
        reads = JUDGED_TASK if judge is not None and requested is None else requested
        others = {"test": test, "validation": validation}
        given = train, *(align_columns(train, rows, name) for name, rows in others.items())
        with collected_assumptions() as assumed:
            if reads is JUDGED_TASK and loss is None:  # no labels are read
                given = tuple(x if x is None else read_inputs(model, x) for x in given)
            workload = cls._of(model, given, reads, judge is None, (name, dataset), device)
            task = build_task(requested, workload.train, metric, judge, loss)
            task = bound_task(task, workload.model, workload.train)
            assume_scaled_logits(task, workload.model, workload.train)
        workload = replace(workload, task=task, judge=judge, assumptions=assumed)
        return workload if teacher is None else workload.with_teacher(teacher)

    def with_teacher(self, given: Any) -> Workload:
        """Returns the workload with another teacher for distillation.

        Args:
            given: module, graph, the name of a built-in model, which is trained, or a path as for
                `chop.train.distillation.teacher.load_teacher`.
        Raises:
            ConfigError: if it does not take the training rows, or numbers the classes otherwise.
        """
        name = builtin_model(given) if isinstance(given, str) else None
        if name is not None:
            given = load_trained(name, held_out=VALIDATION_SHARE)
        teacher = load_teacher(given)
        check_class_order(self.class_names or get_class_names(self.model), teacher)
        few = cast_rows(teacher, self.train.spread(3))
        check_forward(Teacher(teacher).on(self.device), few, "teacher", self.dataset)
        own = name or (short_name(given) if isinstance(given, str) else "")
        return replace(self, teacher=teacher, teacher_name=own)

    @classmethod
    def _of(
        cls,
        model: nn.Module,
        rows_by_split: tuple[Any, Any, Any],
        reads: Task | None,
        splits_off: bool,
        names: tuple[str | None, str],
        device: str | None,
    ) -> Workload:
        """Builds the workload; test rows default to a split of `train`, or to all of it."""
        name, dataset = names
        splits = dict(zip(("train", "test", "validation"), rows_by_split, strict=True))
        given = {k: split for k, split in splits.items() if split is not None}
        classes: tuple[str, ...] = ()
        if reads is None or reads.takes_names:
            own = getattr(getattr(model, "config", None), "label2id", None)
            given, classes = with_numbered_texts(given, own)
        read = {k: read_rows(split, reads) for k, split in given.items()}
        report_repeated_rows(read)
        if "test" not in read and splits_off:
            read["train"], read["test"] = split_rows(read["train"], HELD_OUT_SHARE, stratify=True)
            assume_split_off(HELD_OUT_SHARE, OWN_TEST)
        rows = cast_inputs(model, read)
        place, name = usable_device(device), name or type(model).__name__
        check_has_values(model, name)
        own = _copy_model(model, name)
        for split, each in rows.items():
            part = "" if split == "train" else f" ({split} rows)"
            check_forward(own.to(place), each, name, f"{dataset}{part}")
        return cls(
            own.eval(),
            name,
            dataset,
            train=rows["train"],
            test=rows.get("test", rows["train"]),
            validation=rows.get("validation"),
            device=place,
            tuning_epochs=CHECKPOINT_EPOCHS,
            tuning_lr=CHECKPOINT_LR,
            class_names=classes,
        )

    def with_validation(self) -> Workload:
        """Returns a workload with validation rows, by default a share of the training rows."""
        if self.validation is not None or self.judge is not None:
            return self
        train, validation = split_rows(self.train, stratify=True)
        return replace(self, train=train, validation=validation, has_seen_validation=True)

    @property
    def chooses_by_rows(self) -> bool:
        """True if validation rows are used for choices, not a function's reported numbers."""
        return self.validation is not None and self.judge is None

    @property
    def has_seen_test(self) -> bool:
        """True if no test rows were given, so that the model may have been trained on them."""
        return any(each.about == SPLIT_OFF for each in self.assumptions)

    def get_name(self, rows: str) -> str:
        """Returns the name of rows; those of `test` are not called test rows if `has_seen_test`.

        Args:
            rows: `test`, `validation` ...
        """
        return "split-off" if rows == "test" and self.has_seen_test else rows

    def count_test(self, count: int | None = None) -> str:
        """Returns the number and name of test rows, all by default: `246 test rows`.

        Rows without labels are just rows.
        """
        kind = "" if self.task.name == JUDGED else f"{self.get_name('test')} "
        return f"{len(self.test) if count is None else count} {kind}rows"

    @property
    def about_test(self) -> str:
        """Describes the rows and intervals of reported numbers, for a table's footnote."""
        if self.judge is not None:
            return (
                f"Scored by {self.judge.title}. The same numbers choose the format, so the chosen "
                "one is slightly too good."
            )
        return f"{self.count_test()}. {interval_note(self.task.metric)}"

    @property
    def judged_on(self) -> str:
        """The rows of reported numbers, ` on 360 test rows`; "" if a user's function judges."""
        return "" if self.judge is not None else f" on {self.count_test()}"

    @property
    def chance(self) -> float | None:
        """Accuracy of always answering the most common test class; None for other tasks."""
        if self.task.metric.score is not accuracy:
            return None
        labels = counted(self.test.labels)
        return constant_score(self.task.metric, labels)

    @property
    def baselines(self) -> dict[str, float]:
        """Reference lines in figures, in addition to the float model."""
        return {} if self.chance is None else {"chance": self.chance}

    def tuning(self, epochs: int | None, lr: float | None, config: WorkloadConfig) -> Training:
        """Returns arguments of `chop.train.fit` for further training.

        The default learning rate is `tuning_lr`, scaled by sqrt(epochs / tuning_epochs) for fewer
        epochs, because a large rate needs time to settle. Without a loss, the number of epochs is
        0.

        Raises:
            ConfigError: if epochs are requested without a loss.
        """
        can_train = self.can_train(config)
        if epochs and not can_train:
            raise ConfigError(
                "--evaluate defines no loss, so the model cannot be trained: pass --loss "
                "file.py:fn, --task or --distill, or 0 epochs."
            )
        usual = self.tuning_epochs if can_train else 0
        epochs = usual if epochs is None else epochs
        share = min(1.0, epochs / self.tuning_epochs)
        rate = self.tuning_lr * math.sqrt(share) if lr is None else lr
        training = Training(epochs=epochs, lr=rate, batch_size=config.batch_size, seed=config.seed)
        return self.with_distillation(training, config, compares_layers=self.teacher is None)

    def can_train(self, config: WorkloadConfig) -> bool:
        """Returns true if there is a loss for training: the task's, or a teacher's outputs."""
        return self.task.can_train or config.distillation is not None

    def with_distillation(
        self, training: Training, config: WorkloadConfig, *, compares_layers: bool = False
    ) -> Training:
        """Adds the settings of the distillation to a record of training, if there is one.

        Args:
            training: the record.
            config: settings of the job.
            compares_layers: see `Distillation.resolve`.
        """
        if config.distillation is None or not training["epochs"]:
            return training
        record = config.distillation.record(self.task, compares_layers=compares_layers)
        if self.teacher is not None:
            record["teacher"] = fingerprint_of_weights(self.teacher)
        return {**training, "distill": record}

    def get_arguments(self, training: Training) -> dict[str, Any]:
        """Returns arguments of `chop.train.fit` from a record of training, with the teacher.

        The assumptions of the job have a sentence about it.
        """
        record = training.get("distill")
        if record is None:
            return dict(training)
        given = f"'{self.teacher_name}'" if self.teacher_name else "the given teacher"
        name = "the float model" if self.teacher is None else given
        assume(describe_distillation(record, name))
        own = {key: value for key, value in record.items() if key != "teacher"}
        return {**training, "distill": Distillation(**own, teacher=self._teacher)}

    @cached_property
    def _teacher(self) -> Teacher:
        """Teacher of all trainings, which computes its answers once."""
        return Teacher(self.model if self.teacher is None else self.teacher)

    def fit(self, model: nn.Module, training: Training, progress: Progress = None) -> None:
        """Trains a model in place on the training rows."""
        where = {"device": self.device, "task": self.task, "progress": progress}
        fit(model, self.train, **self.get_arguments(training), **where)  # type: ignore[arg-type]

    def evaluate(self, model: nn.Module, rows: Rows, progress: Progress = None) -> float:
        """Returns the task's metric of a model on some rows, or the number of a user's function."""
        if self.judge is not None:
            return self.judge.score(model).value
        return evaluate(model, rows, device=self.device, task=self.task, progress=progress)

    def score(self, model: nn.Module, rows: Rows, progress: Progress = None) -> Score:
        """Returns the metric with its interval and that of a constant answer."""
        if self.judge is not None:
            return self.judge.score(model)
        _, predictions, labels = predict(
            model, rows, device=self.device, task=self.task, progress=progress
        )
        return self.compute_score(predictions, labels, len(rows))

    def compute_score(self, predictions: Tensor, labels: Tensor, rows: int) -> Score:
        """Returns the score of a metric's (K, ...) inputs for some number of rows."""
        metric, layout = self.task.metric, self.task.layout
        parts = {} if metric.parts is None else metric.parts(predictions, labels)
        constants = {} if layout is None or not parts else layout.constants(labels)
        return Score(
            metric.score(predictions, labels),
            compute_interval(metric, predictions, labels),
            constant_score(metric, labels, lambda: self._frequencies(labels)),
            rows,
            self.task.is_one_class is not None and self.task.is_one_class(labels),
            parts,
            {name: value for name, value in constants.items() if not parts[name] > value},
        )

    def _frequencies(self, labels: Tensor) -> Tensor:
        """Returns the frequency of each class in the training rows; covers all of `labels`."""
        vocabulary = getattr(getattr(self.model, "config", None), "vocab_size", 0)
        size = max(vocabulary or 0, int(labels.max()) + 1)
        return torch.bincount(counted(self.train.labels).long(), minlength=size)

    def example(self) -> dict[str, Tensor]:
        """Returns a few rows as model inputs, without labels."""
        return example_inputs(self.model, self.train)


OWN_TEST = "Pass test=(X, y)."
"""Advice on giving test rows."""


def raise_to_graph(workload: Workload, *, with_cache: bool = True) -> MaseGraph:
    """Captures the workload's model as a graph with metadata.

    Args:
        workload: the model, and rows for an example.
        with_cache: a decoder's graph takes a key-value cache as well.
    """
    example = workload.example()
    names = None if with_cache else [*example]
    mg = MaseGraph(workload.model, hf_input_names=names, dummy_in=example)
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    return mg


def raise_for_integers(workload: Workload) -> MaseGraph:
    """Captures the workload's model with operators that have integer forms, as far as possible.

    The graph takes no cache, batch norms are folded, and written-out RMSNorms become modules. Warns
    with the reason if one does not.
    """
    mg, _ = passes.conv_bn_fusion_transform_pass(raise_to_graph(workload, with_cache=False))
    mg, info = passes.fuse_rms_norm_transform_pass(mg)
    for path, reason in info["skipped"].items():
        warn_once(f"{path}: an RMSNorm that is written out has no integer form: {reason}.")
    return mg


def _copy_model(model: nn.Module, name: str) -> nn.Module:
    """Returns a deep copy of a model.

    Raises:
        ConfigError: if an attribute, such as a lock, cannot be copied.
    """
    try:
        return copy.deepcopy(model, computed_tensors(model))
    except (TypeError, RuntimeError) as error:
        if reached_limit(error):
            raise
        raise ConfigError(
            f"'{name}' has an attribute that cannot be copied ({first_line(error)}); remove it "
            "from the model, or set it in forward."
        ) from error
