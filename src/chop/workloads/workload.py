"""Workload: a trained model and its rows for training, calibration and test."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from chop import passes
from chop.base.notices import Assumption, collected_assumptions, warn_once
from chop.captured.wrappers import check_is_module, check_is_unwrapped
from chop.data.load import HELD_OUT_SHARE, SPLIT_OFF, assume_split_off
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.train import (
    Metric,
    Rows,
    Task,
    evaluate,
    find_task,
    fit,
    predict,
    read_rows,
    split_rows,
    usable_device,
)
from chop.train.calibration import example_inputs
from chop.train.dtypes import cast_inputs
from chop.train.feed import bound_task
from chop.train.intervals import Score, compute_interval, constant_score, counted, interval_note
from chop.train.judge import Judge
from chop.train.metrics import accuracy
from chop.train.tasks import CLASSIFICATION, UNTOLD_TASK
from chop.train.text_labels import with_numbered_texts
from chop.train.train_loop import Progress
from chop.workloads.judging import build_judge, task_with
from chop.workloads.probe import check_forward, note_scaled_answers
from chop.workloads.settings import WorkloadConfig, short_name

CHECKPOINT_LR, CHECKPOINT_EPOCHS = 1e-4, 1

COLUMNS = (
    *("method", "format", "validation", "test", "bits", "quantized", "size_kb", "poor_fit"),
    *("unreached", "validation_interval_95", "test_interval_95", "left_alone"),
    *("width", "frac_width", "float", "PTQ", "QAT", "sparsity", "pruned", "fine-tuned"),
    *("loss", "kl", "parameters", "size_bytes", "graph", "seconds", "start", "varied", "part"),
    *("outputs", "integer_bits", "ranges", "method", "weights", "inputs", "table"),
)
"""What else the jobs' tables, results and pictures have, so that no metric can be called it."""


class Training(TypedDict):
    """Arguments of `chop.train.fit` for training a model further; records keep them as JSON."""

    epochs: int
    lr: float
    batch_size: int
    seed: int


@dataclass(frozen=True)
class Workload:
    """A trained model with its data.

    Attributes:
        model: in eval mode, on `device`.
        name: what it is called.
        dataset: name of the data set.
        train: rows to train and calibrate on.
        test: rows to measure on; nothing is chosen by them.
        device: where everything runs.
        tuning_epochs: passes over the training rows that win back what rounding or pruning took.
        tuning_lr: the largest learning rate of so many epochs.
        validation: rows to choose by, which are not among `train`; None where none were kept.
        has_seen_validation: the model may have been trained on them, elsewhere.
        task: what the model is asked to do.
        judge: a function of the user's that judges models instead of the task's metric on rows:
            then the rows are inputs to calibrate, train and time with.
        assumptions: assumptions of the job, for its report.
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
    assumptions: Sequence[Assumption] = ()

    def __post_init__(self) -> None:
        """Raises ConfigError where the metric's name can be that of no column and file."""
        name = self.task.metric.name
        give = "chop.train.Metric(name, score)" if self.judge is None else "metric=NAME"
        if not re.fullmatch(r"[\w-]+", name):
            raise ConfigError(
                f"metric '{name}': expected a name of letters, digits, _ and -, which columns and "
                f"files get; give {give}."
            )
        if name in COLUMNS:
            raise ConfigError(
                f"metric '{name}': tables and files have something else by that name; give {give} "
                "with another."
            )

    @property
    def title(self) -> str:
        """`MODEL on DATA`, above tables and figures."""
        return f"{short_name(self.name)} on {short_name(self.dataset)}"

    @classmethod
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
    ) -> Workload:
        """A trained model of your own with its data, for every job that takes a `workload`.

        Args:
            model: stays as it is; the workload has a copy.
            train: rows to calibrate and train on, as `chop.train.read_rows` takes them: `(X, y)`,
                a TensorDataset, a DataLoader, a data set.
            test: rows to report on. Default: a fifth of `train`, which reports say first, as the
                model may have been trained on them; with `evaluate`, those of `train`.
            validation: rows to choose by; default, a share of `train` where a job needs some.
            task: a name of `chop.train.TASKS` or a `Task`; default, what the labels are.
            metric: what the model is judged by; default, the task's own. Its name is that of
                columns and files: letters, digits, `_` and `-`.
            name: of the model in tables; default, its class.
            dataset: name of the data in tables.
            device: default, a GPU where there is one.
            evaluate: a function that judges the model, of whatever task: it takes the model, in
                evaluation mode, and gives a number, or one for each row, whose mean counts. No rows
                need labels then. `metric`, a name, is what the number is called.
            lower_is_better: lower numbers of `evaluate` are better.
            loss: a function that training minimizes: it takes what the model returns and the labels
                of a batch, and gives their mean loss; default, that of the task.
        Raises:
            ConfigError: rows that cannot be read or that the model cannot take, an unknown task or
                metric, or one with a name that no column and file can have.
        """
        check_is_module(model, "model")
        check_is_unwrapped(model, "model")
        asked = None if task is None else find_task(task)
        judge = build_judge(evaluate, metric, lower_is_better)
        reads = UNTOLD_TASK if judge is not None and asked is None else asked
        given = train, test, validation
        with collected_assumptions() as assumed:
            found = cls._of(model, given, reads, judge is None, (name, dataset), device)
            task = task_with(asked, found.train, metric, judge, loss)
            task = bound_task(task, found.model, found.train)
            note_scaled_answers(task, found.model, found.train)
        return replace(found, task=task, judge=judge, assumptions=assumed)

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
        """The rows as `reads` says, with test rows split off where none are given, or train's."""
        name, dataset = names
        splits = dict(zip(("train", "test", "validation"), rows_by_split, strict=True))
        given = {k: split for k, split in splits.items() if split is not None}
        if reads is None or reads.takes_names:
            own = getattr(getattr(model, "config", None), "label2id", None)
            given = with_numbered_texts(given, own)
        read = {k: read_rows(split, reads) for k, split in given.items()}
        if "test" not in read and splits_off:
            read["train"], read["test"] = split_rows(read["train"], HELD_OUT_SHARE)
            assume_split_off(HELD_OUT_SHARE, OWN_TEST)
        rows = cast_inputs(model, read)
        place, own = usable_device(device), copy.deepcopy(model)
        name = name or type(model).__name__
        check_forward(own.to(place), rows["train"], name, dataset)
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
        )

    def with_validation(self) -> Workload:
        """The same with rows to choose by: where there are none, a share of the training rows."""
        if self.validation is not None or self.judge is not None:
            return self
        train, validation = split_rows(self.train)
        return replace(self, train=train, validation=validation, has_seen_validation=True)

    @property
    def chooses_by_rows(self) -> bool:
        """True if validation rows choose, not the numbers of a function that are reported."""
        return self.validation is not None and self.judge is None

    @property
    def has_seen_test(self) -> bool:
        """True if no test rows were given: the model may have been trained on those of `test`."""
        return any(each.about == SPLIT_OFF for each in self.assumptions)

    def get_name(self, rows: str) -> str:
        """What rows are called: those of `test` are no test rows where `has_seen_test`.

        Args:
            rows: `test`, `validation` ...
        """
        return "split-off" if rows == "test" and self.has_seen_test else rows

    def count_test(self, count: int | None = None) -> str:
        """So many test rows, all by default, with what they are: `246 test rows`.

        Those of a function that judges are just rows.
        """
        kind = "" if self.judge is not None else f"{self.get_name('test')} "
        return f"{len(self.test) if count is None else count} {kind}rows"

    @property
    def about_test(self) -> str:
        """How many rows numbers are of, and what their intervals are, for a line below a table."""
        if self.judge is not None:
            return f"Judged by {self.judge.title}: formats are chosen by the numbers reported."
        return f"{self.count_test()}. {interval_note(self.task.metric)}"

    @property
    def judged_on(self) -> str:
        """The rows of reported numbers, ` on 360 test rows`; "" where a user's function judges."""
        return "" if self.judge is not None else f" on {self.count_test()}"

    @property
    def chance(self) -> float | None:
        """Accuracy of always answering the commonest class of the test rows; None of others."""
        if self.task.metric.score is not accuracy:
            return None
        labels = counted(self.test.labels)
        return constant_score(self.task.metric, labels)

    @property
    def baselines(self) -> dict[str, float]:
        """What is drawn as a line beside the float model."""
        return {} if self.chance is None else {"chance": self.chance}

    def tuning(self, epochs: int | None, lr: float | None, config: WorkloadConfig) -> Training:
        """Arguments of `chop.train.fit` for training the model further.

        Where no rate is given it is `tuning_lr`, and for fewer epochs than `tuning_epochs` that
        times sqrt(epochs / tuning_epochs): a model that is shaken hard needs time to settle. Where
        no loss is known to train by, there are no epochs.

        Raises:
            ConfigError: epochs were asked for, and no loss is known.
        """
        if epochs and not self.task.can_train:
            raise ConfigError(
                "--evaluate judges the model, and no loss is known to train it by: give --loss "
                "file.py:fn or --task, or 0 epochs."
            )
        usual = self.tuning_epochs if self.task.can_train else 0
        epochs = usual if epochs is None else epochs
        share = min(1.0, epochs / self.tuning_epochs)
        rate = self.tuning_lr * math.sqrt(share) if lr is None else lr
        return {"epochs": epochs, "lr": rate, "batch_size": config.batch_size, "seed": config.seed}

    def fit(self, model: nn.Module, training: Training, progress: Progress = None) -> None:
        """Trains a model in place on the training rows."""
        where = {"device": self.device, "task": self.task, "progress": progress}
        fit(model, self.train, **training, **where)  # type: ignore[arg-type]

    def evaluate(self, model: nn.Module, rows: Rows, progress: Progress = None) -> float:
        """The task's metric of a model on some rows; what a function of the user's gives for it."""
        if self.judge is not None:
            return self.judge.score(model).value
        return evaluate(model, rows, device=self.device, task=self.task, progress=progress)

    def score(self, model: nn.Module, rows: Rows, progress: Progress = None) -> Score:
        """The same with its interval, and that of a constant answer."""
        if self.judge is not None:
            return self.judge.score(model)
        _, predictions, labels = predict(
            model, rows, device=self.device, task=self.task, progress=progress
        )
        return self.compute_score(predictions, labels, len(rows))

    def compute_score(self, predictions: Tensor, labels: Tensor, rows: int) -> Score:
        """The score of what the metric takes, (K, ...) each, of so many rows."""
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
        """How often each class is a label of the training rows, those of `labels` among them."""
        vocabulary = getattr(getattr(self.model, "config", None), "vocab_size", 0)
        size = max(vocabulary or 0, int(labels.max()) + 1)
        return torch.bincount(counted(self.train.labels).long(), minlength=size)

    def example(self) -> dict[str, Tensor]:
        """A few rows as the model takes them, without labels."""
        return example_inputs(self.model, self.train)


OWN_TEST = "Give test=(X, y)."
"""Advice on giving test rows with own rows."""


def raise_to_graph(workload: Workload, *, with_cache: bool = True) -> MaseGraph:
    """The workload's model as a graph with metadata.

    Args:
        workload: the model, and rows for an example.
        with_cache: a decoder's graph takes keys and values of tokens before, too.
    """
    example = workload.example()
    names = None if with_cache else [*example]
    mg = MaseGraph(workload.model, hf_input_names=names, dummy_in=example)
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    return mg


def raise_for_integers(workload: Workload) -> MaseGraph:
    """The workload's model as a graph of operators that have integer forms, where it can be one.

    It takes no cache, batch norms are folded, and RMSNorms that are written out are a module each;
    one that is not is told with the reason.
    """
    mg, _ = passes.conv_bn_fusion_transform_pass(raise_to_graph(workload, with_cache=False))
    mg, info = passes.fuse_rms_norm_transform_pass(mg)
    for path, reason in info["skipped"].items():
        warn_once(f"{path}: an RMSNorm that is written out has no integer form: {reason}.")
    return mg
