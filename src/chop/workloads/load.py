"""Workload loader: model and rows from the settings of a job."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from rich import get_console
from torch import nn

from chop.base.files import atomic_file, make_folder
from chop.base.notices import assume, collected_assumptions, forget_assumptions
from chop.captured.wrappers import check_has_values
from chop.data import BUILTIN_TOKENIZERS
from chop.data.builtin_names import MARK, plain_name, report_choice
from chop.data.load import SPLIT_OFF, builtin_dataset
from chop.errors import ConfigError
from chop.export.qonnx.reader import is_qonnx
from chop.models import BUILTIN_MODELS, builtin_model, check_is_in_file
from chop.models.positions import check_positions
from chop.train import (
    VALIDATION_SHARE,
    Rows,
    Task,
    default_dataset,
    find_task,
    fit,
    load_trained,
    read_rows,
    split_rows,
    usable_device,
)
from chop.train.dtypes import cast_inputs
from chop.train.feed import bound_task
from chop.train.tasks import check_metric_name
from chop.workloads.checkpoint import load_checkpoint
from chop.workloads.fingerprints import fingerprint_of_rows, fingerprint_of_weights
from chop.workloads.judging import build_judge, build_task
from chop.workloads.pictures import SETTINGS
from chop.workloads.probe import (
    assume_scaled_logits,
    check_classes,
    check_forward,
    check_weights,
)
from chop.workloads.quantized_file import check_takes_formats, random_workload
from chop.workloads.repeated_rows import report_repeated_rows
from chop.workloads.settings import JudgedConfig, WorkloadConfig
from chop.workloads.standard_labels import with_standard_labels
from chop.workloads.workload import CHECKPOINT_EPOCHS, CHECKPOINT_LR, Training, Workload

if TYPE_CHECKING:
    from datasets import DatasetDict

BUILTIN_LR, BUILTIN_EPOCHS = 3e-3, 15
FINE_TUNED = "fine-tuned-{}.safetensors"
"""File of a model that was fine-tuned before a job, named by a digest of its inputs."""
CHECKPOINT_SETTINGS = (
    *("stride", "tokenizer", "text_column", "label_column", "input_columns", "weights", "task"),
    *("label_mean", "label_std", "class_names"),
    *SETTINGS,
)
"""Settings that apply to models which are not built in."""


def workload_for(config: WorkloadConfig, workload: Workload | None) -> Workload:
    """Returns the given workload with the evaluation of `config`, or loads the one in `config`.

    Raises:
        ConfigError: if settings, model and data set do not fit together.
        UnavailableError: if model or data set are missing.
        WriteError: if `config.out` cannot be written to.
    """
    if workload is None:
        loaded = load_workload(config)
    else:
        make_folder(config.out)
        loaded = workload
        if loaded.judge is not None and not isinstance(config, JudgedConfig):
            raise ConfigError(
                f"{loaded.judge.title}: this job evaluates with the metric of a task. Functions "
                "are supported by chop compress, evaluate, sweep, search precision and search nas."
            )
        if loaded.judge is None:
            loaded = replace(workload, task=workload.task.with_metric(config.metric))
        splits = [x for x in (loaded.train, loaded.test, loaded.validation) if x is not None]
        check_classes(loaded.task, loaded.model, splits, loaded.class_names)
    check_weights(loaded.model)
    teacher = getattr(config, "distill_teacher", None)
    return loaded if teacher is None else loaded.with_teacher(teacher)


def merge_settings(config: WorkloadConfig, workload: Workload) -> dict[str, Any]:
    """Returns the settings of a job for its manifest, with the model of the workload.

    They include the input columns of a table and the class names, so that later jobs match those
    of other data by name.
    """
    is_same = workload.name == plain_name(config.model)
    return {
        **vars(config),
        "model": config.model if is_same else workload.name,
        "input_columns": config.input_columns or workload.input_columns or None,
        "class_names": config.class_names or workload.class_names or None,
    }


def load_workload(config: WorkloadConfig) -> Workload:
    """Loads, or trains, a model and its data.

    A model that was fine-tuned is saved in `config.out`, so that a repeated job does not train it
    again.

    Raises:
        ConfigError: if model and data set do not fit together.
        UnavailableError: if model or data set are missing.
        WriteError: if `config.out` cannot be written to.
    """
    place = usable_device(config.torch_device)
    own = config.own_functions
    for setting, code in (("evaluate", own.evaluate), ("loss", own.loss)):
        if code is not None:
            check_is_in_file(code, setting)
    if config.metric is not None and own.evaluate is None:
        check_metric_name(config.metric, config.task)
    name = builtin_model(config.model)
    title = config.model if name is None else f"{name}{MARK}"
    get_console().print(f"loading {title} and its rows", highlight=False, markup=False)
    with collected_assumptions() as assumed:
        loaded = _load(config, place, name)
        if loaded.judge is not None:  # it uses its own rows
            forget_assumptions(SPLIT_OFF)
    return replace(loaded, assumptions=assumed)


def _load(config: WorkloadConfig, place: torch.device, name: str | None) -> Workload:
    """Loads the workload of the settings; `name` is that of a built-in model, else None."""
    report_choice(config.model, BUILTIN_MODELS, "model", name)
    check_takes_formats(config)
    if is_qonnx(config.model) and config.dataset is None:
        return random_workload(config, place)
    functions = config.own_functions
    if name is not None:
        _check_is_of_builtin(config, name)
        builtin = BUILTIN_MODELS[name]
        task, own = find_task(builtin.task), builtin.dataset
        if functions.evaluate is None:
            task = task.with_metric(config.metric)
        if config.dataset is not None and builtin_dataset(config.dataset) != own:
            raise ConfigError(
                f"built-in model '{name}' is trained on '{own}', not on '{config.dataset}'; leave "
                "dataset out, or choose a model of your own, a folder or file.py:Net."
            )
        make_folder(config.out)
        assume(f"Model: {name}{MARK}; data: {own}{MARK}.")
        data = default_dataset(name, max_length=config.max_length)
        rows = _limited(get_rows(data, task), config.limit)
        model = load_trained(name, progress=True, held_out=VALIDATION_SHARE, seed=config.seed)
        check_positions(config.max_length, model)
        dataset, epochs, lr, has_seen = own, BUILTIN_EPOCHS, BUILTIN_LR, False
        columns: Sequence[str] = []
        classes: Sequence[str] = []
    else:
        model, data, task, columns, classes = load_checkpoint(config)
        check_has_values(model, config.model)
        scale = config.label_mean, config.label_std
        # The validation rows of built-in data stay those that numbers were recorded with.
        is_own_data = builtin_dataset(config.dataset) is None
        split = get_rows(data, task, stratify=is_own_data)
        rows = cast_inputs(model, with_standard_labels(split, task, *scale))
        check_forward(model.to(place), rows["train"], config.model, str(config.dataset), columns)
        if config.train_epochs:
            _fine_tune(model, rows["train"], config, place, task)
        dataset, epochs, lr = str(config.dataset), CHECKPOINT_EPOCHS, CHECKPOINT_LR
        has_seen = "validation" not in data
        if (own_data := builtin_dataset(config.dataset)) is not None:
            assume(f"Data: {own_data}{MARK}.")
    judge = build_judge(functions.evaluate, config.metric, functions.lower_is_better)
    assume_scaled_logits(task, model, rows["train"])
    built = build_task(task, rows["train"], None, judge, functions.loss)
    task = bound_task(built, model, rows["train"])
    check_classes(task, model.to(place).eval(), [*rows.values()], classes)
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
        task=task,
        judge=judge,
        input_columns=tuple(columns),
        class_names=tuple(classes),
    )


def get_rows(data: DatasetDict, task: Task, *, stratify: bool = False) -> dict[str, Rows]:
    """Returns the splits by name; by default, validation rows are taken from the training rows.

    The rows do not depend on the training seed, and the first of them are a random sample.

    Args:
        data: splits with a label each.
        task: task of the rows.
        stratify: take validation rows of each class in proportion.
    """
    rows = {name: read_rows(split, task) for name, split in data.items()}
    report_repeated_rows(rows)
    if "validation" not in rows:
        rows["train"], rows["validation"] = split_rows(
            rows["train"], VALIDATION_SHARE, stratify=stratify
        )
    return rows


def _limited(rows: Mapping[str, Rows], limit: int | None) -> dict[str, Rows]:
    """Limits each split to `limit` rows, drawn with a fixed seed."""
    drawn = {}
    for name, split in rows.items():
        order = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))
        drawn[name] = split if limit is None else split.take(order[:limit])
    return drawn


def _check_is_of_builtin(config: WorkloadConfig, model: str) -> None:
    """Raises ConfigError for settings that do not apply to a built-in model."""
    own = {None, BUILTIN_MODELS[model].task}
    if config.max_length is not None and model not in BUILTIN_TOKENIZERS:
        raise ConfigError(f"max_length: applies to texts, and built-in model '{model}' reads none.")
    for name in CHECKPOINT_SETTINGS:
        if getattr(config, name) not in (own if name == "task" else {None}):
            if model == type(config).model:
                raise ConfigError(
                    f"model: pass your own with --model, such as --model net.py:Net, or leave out "
                    f"{name}: the default, built-in model '{model}', has its own data, weights and "
                    "task."
                )
            raise ConfigError(
                f"{name}: leave it out, since built-in model '{model}' has its own data, weights "
                "and task. It applies to a model of your own."
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
