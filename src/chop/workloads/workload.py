"""Workload: a trained model and its rows for training, calibration and test."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from rich import get_console
from torch import Tensor, nn

from chop import passes
from chop.captured.wrappers import check_is_module, check_is_unwrapped
from chop.data.builtin_names import MARK, plain_name, tell_which
from chop.data.load import HELD_OUT_SHARE, SPLIT_OFF, assume_split_off, builtin_dataset
from chop.errors import ConfigError
from chop.files import atomic_file, make_folder
from chop.ir.graph import MaseGraph
from chop.models import BUILTIN_MODELS, builtin_model, check_is_in_file, function_of_file
from chop.notices import (
    Assumption,
    assume,
    collected_assumptions,
    forget_assumptions,
    warn_once,
)
from chop.train import (
    VALIDATION_SHARE,
    Metric,
    Rows,
    Task,
    default_dataset,
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
from chop.train.dtypes import in_dtype_of
from chop.train.intervals import Score, constant_score, counted, interval_note, interval_of
from chop.train.judge import Judge, checked_loss
from chop.train.metrics import accuracy
from chop.train.tasks import (
    BINARY,
    CLASSIFICATION,
    UNTOLD_TASK,
    check_is_clear,
    check_metric_name,
)
from chop.train.train_loop import Progress
from chop.workloads.checkpoint import load_checkpoint
from chop.workloads.fingerprints import fingerprint_of_rows, fingerprint_of_weights
from chop.workloads.pictures import SETTINGS
from chop.workloads.probe import check_forward, check_weights
from chop.workloads.settings import JudgedConfig, WorkloadConfig, short_name

if TYPE_CHECKING:
    from datasets import DatasetDict

BUILTIN_LR, BUILTIN_EPOCHS = 3e-3, 15
CHECKPOINT_LR, CHECKPOINT_EPOCHS = 1e-4, 1
FINE_TUNED = "fine-tuned-{}.safetensors"
"""File of a model that was fine-tuned before a job, by a digest of all that it depends on."""
OF_CHECKPOINTS = (
    *("stride", "tokenizer", "text_column", "label_column", "weights", "task"),
    *("label_mean", "label_std"),
    *SETTINGS,
)
"""Settings of models that are not built in."""

COLUMNS = (
    *("method", "format", "validation", "test", "bits", "quantized", "size_kb", "poor_fit"),
    *("unreached", "validation_interval_95", "test_interval_95", "left_alone"),
    *("width", "frac_width", "float", "PTQ", "QAT", "sparsity", "pruned", "fine-tuned"),
    *("loss", "kl", "parameters", "size_bytes", "graph", "seconds", "start", "varied", "part"),
    *("integer_bits", "ranges", "method", "weights", "inputs", "table"),
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
        assumptions: what was taken for granted; reports have it.
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
            lower_is_better: of the numbers of `evaluate`.
            loss: a function that training minimizes: it takes what the model returns and the labels
                of a batch, and gives their mean loss; default, that of the task.
        Raises:
            ConfigError: rows that cannot be read or that the model cannot take, an unknown task or
                metric, or one with a name that no column and file can have.
        """
        check_is_module(model, "model")
        check_is_unwrapped(model, "model")
        asked = None if task is None else find_task(task)
        judge = judge_of(evaluate, metric, lower_is_better)
        reads = UNTOLD_TASK if judge is not None and asked is None else asked
        given = train, test, validation
        with collected_assumptions() as assumed:
            found = cls._of(model, given, reads, judge is None, (name, dataset), device)
            task = task_with(asked, found.train, metric, judge, loss)
        return replace(found, task=task, judge=judge, assumptions=assumed)

    @classmethod
    def _of(
        cls,
        model: nn.Module,
        given: tuple[Any, Any, Any],
        reads: Task | None,
        splits_off: bool,
        names: tuple[str | None, str],
        device: str | None,
    ) -> Workload:
        """The rows as `reads` says, with test rows split off where none are given, or train's."""
        name, dataset = names
        splits = dict(zip(("train", "test", "validation"), given, strict=True))
        read = {k: read_rows(split, reads) for k, split in splits.items() if split is not None}
        if "test" not in read and splits_off:
            read["train"], read["test"] = split_rows(read["train"], HELD_OUT_SHARE)
            assume_split_off(HELD_OUT_SHARE, OWN_TEST)
        rows = in_dtype_of(model, read)
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
    def has_seen_test(self) -> bool:
        """Whether no test rows were given: the model may have been trained on those of `test`."""
        return any(each.about == SPLIT_OFF for each in self.assumptions)

    def name_of(self, rows: str) -> str:
        """What rows are called: those of `test` are no test rows where `has_seen_test`.

        Args:
            rows: `test`, `validation` ...
        """
        return "split-off" if rows == "test" and self.has_seen_test else rows

    def count_test(self, count: int | None = None) -> str:
        """So many test rows, all by default, with what they are: `246 test rows`.

        Those of a function that judges are just rows.
        """
        kind = "" if self.judge is not None else f"{self.name_of('test')} "
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
        times sqrt(epochs / tuning_epochs): a model that is shaken hard needs time to settle.
        """
        epochs = self.tuning_epochs if epochs is None else epochs
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
        return self.score_of(predictions, labels, len(rows))

    def score_of(self, predictions: Tensor, labels: Tensor, rows: int) -> Score:
        """The score of what the metric takes, (K, ...) each, of so many rows."""
        metric = self.task.metric
        return Score(
            metric.score(predictions, labels),
            interval_of(metric, predictions, labels),
            constant_score(metric, labels, lambda: self._frequencies(labels)),
            rows,
            (self.task.is_categorical or self.task.name == BINARY) and len(labels.unique()) == 1,
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
"""How rows of one's own come with test rows."""


def workload_for(config: WorkloadConfig, workload: Workload | None) -> Workload:
    """The given workload, judged as `config` says; what `config` names where there is none.

    Raises:
        ConfigError: settings, model and data set do not go together.
        UnavailableError: model or data set are not there.
        WriteError: `config.out` cannot be written to.
    """
    if workload is None:
        found = load_workload(config)
    else:
        make_folder(config.out)
        found = workload
        if found.judge is not None and not isinstance(config, JudgedConfig):
            raise ConfigError(
                f"{found.judge.title}: this job judges answers to rows by the metric of a task; "
                "chop compress and chop search precision take a function."
            )
        if found.judge is None:
            found = replace(workload, task=workload.task.with_metric(config.metric))
    check_weights(found.model)
    return found


def settings_with(config: WorkloadConfig, workload: Workload) -> dict[str, Any]:
    """The settings of a job for its manifest; the model is the workload's."""
    is_same = workload.name == plain_name(config.model)
    return {**vars(config), "model": config.model if is_same else workload.name}


def load_workload(config: WorkloadConfig) -> Workload:
    """Loads, or trains, a model and its data.

    A model that had to be fine-tuned is kept in `config.out`, so that the same job run again
    does not train it again.

    Raises:
        ConfigError: model and data set do not go together.
        UnavailableError: model or data set are not there.
        WriteError: `config.out` cannot be written to.
    """
    place = usable_device(config.torch_device)
    own = config.own_functions
    for setting, code in (("evaluate", own.evaluate), ("loss", own.loss)):
        if code is not None:
            check_is_in_file(code, setting)
    if config.metric is not None and own.evaluate is None:
        check_metric_name(config.metric)
    name = builtin_model(config.model)
    title = config.model if name is None else f"{name}{MARK}"
    get_console().print(f"loading {title} and its rows", highlight=False, markup=False)
    with collected_assumptions() as assumed:
        found = _load(config, place, name)
        if found.judge is not None:  # its numbers are of rows of its own
            forget_assumptions(SPLIT_OFF)
    return replace(found, assumptions=assumed)


def _load(config: WorkloadConfig, place: torch.device, name: str | None) -> Workload:
    """The workload of the settings; `name` is that of a built-in model, else None."""
    tell_which(config.model, BUILTIN_MODELS, "model", name)
    functions = config.own_functions
    if name is not None:
        _check_is_of_builtin(config, name)
        builtin = BUILTIN_MODELS[name]
        task, own = find_task(builtin.task), builtin.dataset
        if functions.evaluate is None:
            task = task.with_metric(config.metric)
        if config.dataset is not None and builtin_dataset(config.dataset) != own:
            raise ConfigError(
                f"built-in model '{name}' is trained on '{own}', not on "
                f"'{config.dataset}'; give a model of your own by --model FOLDER."
            )
        make_folder(config.out)
        assume(f"Model: {name}{MARK}; data: {own}{MARK}.")
        data = default_dataset(name, max_length=config.max_length)
        rows = _limited(rows_of(data, task), config.limit)
        model = load_trained(name, progress=True, held_out=VALIDATION_SHARE, seed=config.seed)
        dataset, epochs, lr, has_seen = own, BUILTIN_EPOCHS, BUILTIN_LR, False
    else:
        model, data, task = load_checkpoint(config)
        rows = in_dtype_of(model, _standardized(rows_of(data, task), task, config))
        check_forward(model.to(place), rows["train"], config.model, str(config.dataset))
        if config.train_epochs:
            _fine_tune(model, rows["train"], config, place, task)
        dataset, epochs, lr = str(config.dataset), CHECKPOINT_EPOCHS, CHECKPOINT_LR
        has_seen = "validation" not in data
        if (own_data := builtin_dataset(config.dataset)) is not None:
            assume(f"Data: {own_data}{MARK}.")
    judge = judge_of(functions.evaluate, config.metric, functions.lower_is_better)
    return Workload(
        model.to(place).eval(),
        name or config.model,
        dataset,
        train=rows["train"],
        test=rows["test"],
        device=place,
        tuning_epochs=epochs,
        tuning_lr=lr,
        validation=rows["validation"],
        has_seen_validation=has_seen,
        task=task_with(task, rows["train"], None, judge, functions.loss),
        judge=judge,
    )


def judge_of(
    evaluate: Judge | Callable[[nn.Module], Any] | str | None,
    metric: str | Metric | Callable[..., float] | None,
    lower_is_better: bool,
) -> Judge | None:
    """The judge that a function, or the text `file.py:fn`, is; None of none.

    Args:
        evaluate: the function.
        metric: what its number is called; None: as the function.
        lower_is_better: of its numbers.
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
        metric: of the task; None takes its own.
        judge: a function of the user's; its metric wins.
        loss: likewise, or the text `file.py:fn`; None leaves the task's.
    """
    if judge is None:
        if asked is None:
            check_is_clear(rows.task, rows.labels)
        task = (asked or rows.task).with_metric(metric)
    else:
        task = replace(asked or UNTOLD_TASK, metric=judge.metric)
    if loss is None:
        return task
    code = loss if isinstance(loss, str) else ""
    function = function_of_file(code, "loss") if isinstance(loss, str) else loss
    return replace(task, output_loss=checked_loss(function, code), takes_model_loss=False)


def rows_of(data: DatasetDict, task: Task) -> dict[str, Rows]:
    """The splits by name; validation rows are a share of the training rows where there are none.

    The same rows whatever the seed of the training, and the first of them are a random draw.
    """
    rows = {name: read_rows(split, task) for name, split in data.items()}
    if "validation" not in rows:
        rows["train"], rows["validation"] = split_rows(rows["train"], VALIDATION_SHARE)
    return rows


def _standardized(rows: dict[str, Rows], task: Task, config: WorkloadConfig) -> dict[str, Rows]:
    """The rows with labels as the model was trained on, see `label_mean` and `label_std`."""
    if config.label_mean is None and config.label_std is None:
        return rows
    if task.name != "regression":
        raise ConfigError(
            f"label_mean and label_std: are of numbers, and the task is '{task.name}'; --task "
            "regression takes labels as numbers."
        )
    mean, std = config.label_mean or 0.0, config.label_std or 1.0
    found = {}
    for name, split in rows.items():
        labels = torch.as_tensor(split.labels)
        numbers = labels if labels.is_floating_point() else labels.float()
        found[name] = replace(split, labels=(numbers - mean) / std)
    return found


def _limited(rows: Mapping[str, Rows], limit: int | None) -> dict[str, Rows]:
    """So many rows of each split, drawn by a fixed seed."""
    drawn = {}
    for name, split in rows.items():
        order = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))
        drawn[name] = split if limit is None else split.take(order[:limit])
    return drawn


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


def _check_is_of_builtin(config: WorkloadConfig, model: str) -> None:
    """Raises ConfigError where settings are given that say how to read a model of one's own."""
    own = {None, BUILTIN_MODELS[model].task}
    for name in OF_CHECKPOINTS:
        if getattr(config, name) not in (own if name == "task" else {None}):
            raise ConfigError(
                f"{name}: built-in model '{model}' has data, weights and a task of its "
                "own; give a model of your own by --model."
            )


def _fine_tune(
    loaded: nn.Module, train: Rows, config: WorkloadConfig, place: torch.device, task: Task
) -> None:
    from safetensors.torch import load_model, save_model

    training = Training(
        epochs=config.train_epochs, lr=CHECKPOINT_LR, batch_size=config.batch_size, seed=config.seed
    )
    identity = [fingerprint_of_weights(loaded), fingerprint_of_rows(train), training]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]
    path = config.out / FINE_TUNED.format(digest)
    if path.is_file():
        load_model(loaded, path)
        return
    fit(loaded, train, **training, device=place, progress="fine-tuning", task=task)
    with atomic_file(path) as temporary:
        save_model(loaded, str(temporary))
