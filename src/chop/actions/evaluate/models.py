"""Models of an evaluation: the evaluated model, its float model, and their data."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from chop.actions.compress.earlier_run import (
    CompressedRun,
    DamagedRunError,
    compressed_run,
    judged_settings_of_run,
    no_model,
    read_result,
)
from chop.actions.evaluate.settings import EvaluateConfig
from chop.base.notices import assume
from chop.base.trust import get_identity as named_as
from chop.data.builtin_names import PREFIX
from chop.data.labels import MAX_LISTED
from chop.data.tokenizer import get_tokenizer
from chop.errors import CheckpointError, ConfigError, UnavailableError, enumerate_names, first_line
from chop.ir.graph import MaseGraph
from chop.ir.storage.checkpoint import FILE_IN_RUN, find_checkpoint
from chop.models import builtin_model, is_own, load_model, read_config
from chop.models.load import continues_texts
from chop.models.own import describe_drawn_weights
from chop.train import CAUSAL_LM, VALIDATION_SHARE, Task, load_trained
from chop.train.model_io import read_answers
from chop.workloads.checkpoint import get_data_task, tokenizer_name
from chop.workloads.load import load_workload
from chop.workloads.probe import check_forward, check_weights
from chop.workloads.settings import JudgedWorkloadConfig, WorkloadConfig
from chop.workloads.workload import Workload

STORIES = "stories"
REGRESSION = "regression"
COLUMNS = ("text_column", "label_column", "input_columns", "class_names")
"""Settings that name the columns of a table, or its classes."""


@dataclass(frozen=True)
class Judged:
    """Model to evaluate, with its reference and data.

    Attributes:
        model: in evaluation mode; a language model in its original class.
        reference: float model to compare with, or None.
        reference_name: as given, or as in the run.
        workload: rows and task.
        tokenizer: tokenizer of a language model, else None.
    """

    model: nn.Module
    reference: nn.Module | None
    reference_name: str
    workload: Workload
    tokenizer: Any

    @property
    def is_language(self) -> bool:
        """True for a causal language model."""
        return self.workload.task.name == CAUSAL_LM


def load_judged(config: EvaluateConfig) -> Judged:
    """Loads the models that the settings name, on one device.

    Raises:
        ConfigError: if no data are known, or the two models differ in classes or tokens.
        UnavailableError: if a model, its data or its tokenizer is missing.
        CheckpointError: if the run in the folder saved no model.
    """
    run, checkpoint = find_run(config.model), find_checkpoint(config.model)
    settings = _settings(config, run, checkpoint)
    has_other_data = config.dataset is not None and builtin_model(settings.model) is None
    try:
        workload = load_workload(settings)
    except ConfigError:
        if run is not None and has_other_data:
            _check_labels(run, settings, get_data_task(settings))
        raise
    if run is not None and has_other_data:
        _check_labels(run, settings, workload.task)
    check_weights(workload.model)
    if run is not None and config.dataset is not None and settings.class_names is None:
        _assume_order(config.model, workload)
    if run is None and (drawn := describe_drawn_weights(settings.model)):
        assume(f"{drawn} For trained weights, run chop compress and evaluate its folder.")
    is_language = workload.task.name == CAUSAL_LM
    model = workload.model
    if checkpoint is not None:
        graph = MaseGraph.from_checkpoint(checkpoint)
        needs_class = is_language or workload.judge is not None
        model = graph.to_module(like=model) if needs_class else graph.model
    elif run is not None:
        model = _named(str(_get_folder(run.folder)), workload)
    reference, name = _reference(config, settings, workload, model)
    tokenizer = get_tokenizer(tokenizer_name(settings)) if is_language else None
    judged = Judged(model.to(workload.device).eval(), reference, name, workload, tokenizer)
    _check_comparable(config, judged)
    return judged


def _check_labels(run: CompressedRun, settings: WorkloadConfig, other: Task) -> None:
    """Raises ConfigError for numbers as labels if the run has classes."""
    task = read_result(run.folder, "task")
    if task is None or settings.own_functions.evaluate is not None:
        return
    if task != REGRESSION and other.name == REGRESSION:
        raise ConfigError(
            f"dataset: the task of '{run.folder}' is {task}, and the labels of "
            f"'{settings.dataset}' are those of {other.name}: expected labels as in the run; "
            "--label-column names another column."
        )


def _assume_order(run: str, workload: Workload) -> None:
    """Records the order of classes that neither an earlier run nor its model names."""
    known = getattr(getattr(workload.model, "config", None), "label2id", None) or {}
    if {*workload.class_names} - {*known}:
        assume(
            f"'{run}' does not record the names of its classes: they are numbered as in "
            f"'{workload.dataset}': {enumerate_names(workload.class_names, MAX_LISTED)}; "
            "--class-names sets another order."
        )


def find_run(name: str) -> CompressedRun | None:
    """Returns the `chop compress` run at a path: its folder, or its transformers folder.

    It takes precedence over a built-in model of that name, which `builtin:NAME` selects.
    """
    path = Path(name).expanduser().resolve()
    places = [path] if path.name != FILE_IN_RUN else [path, path.parent]
    for place in [] if name.startswith(PREFIX) else places:
        try:
            return compressed_run(place)
        except DamagedRunError:
            raise
        except CheckpointError:
            continue
    return None


def _get_folder(run: Path) -> Path:
    """Returns the transformers folder of a run by block, which has no checkpoint."""
    folder = run / FILE_IN_RUN
    if not (folder / "config.json").is_file():
        raise no_model(run)
    return folder


def _settings(
    config: EvaluateConfig, run: CompressedRun | None, checkpoint: Path | None
) -> WorkloadConfig:
    """Returns the settings of model and data for reading rows."""
    names = ("dataset", "max_length", "stride", "tokenizer", "device", *COLUMNS)
    given = {name: value for name in names if (value := getattr(config, name)) is not None}
    if config.evaluate is not None:
        given["evaluate"] = config.evaluate
    if config.lower_is_better:  # otherwise the run's own setting applies
        given["lower_is_better"] = True
    if run is not None:
        # Other labels would be classes: whole numbers, and those beside texts of a decoder.
        task = read_result(run.folder, "task")
        if config.dataset is not None and task in (REGRESSION, CAUSAL_LM):
            given["task"] = task
        # The folder of a run has the model that was fine-tuned before it.
        named = "" if config.reference is None else f" --reference {config.reference}"
        command = f"chop evaluate {shlex.quote(config.model)}{named}"
        return judged_settings_of_run(run, {**given, "out": run.folder}, "--reference", command)
    base = config.model if checkpoint is None else config.reference
    if base is None:
        raise ConfigError(
            f"'{config.model}' is a checkpoint of a graph, without data: pass --reference "
            "FLOAT_MODEL to evaluate it on that model's rows, with its tokenizer. A model that is "
            "not built in needs --dataset as well."
        )
    if config.dataset is None and builtin_model(base) is None and _has_causal_head(base):
        given["dataset"] = STORIES
    return JudgedWorkloadConfig(model=base, out=config.out, **given)


def _has_causal_head(name: str) -> bool:
    architectures = [] if is_own(name) else read_config(name).architectures or []
    return any(map(continues_texts, architectures))


def _named(name: str, workload: Workload) -> nn.Module:
    if builtin_model(name):
        return load_trained(name, progress=True, held_out=VALIDATION_SHARE)
    return load_model(name, task=None if is_own(name) else workload.task.auto_task)


def _reference(
    config: EvaluateConfig, settings: WorkloadConfig, workload: Workload, model: nn.Module
) -> tuple[nn.Module | None, str]:
    """Returns the float model on the device, and its name."""
    if config.reference is None or named_as(config.reference) == named_as(settings.model):
        own = None if model is workload.model else workload.model
        if own is None and config.reference is not None:
            raise ConfigError(
                f"reference: '{config.reference}' is the model itself; expected its float model."
            )
        return own, "" if own is None else settings.model
    assert config.reference is not None
    reference = _named(config.reference, workload)
    check_weights(reference)
    return reference.to(workload.device).eval(), config.reference


@torch.inference_mode()
def _check_comparable(config: EvaluateConfig, judged: Judged) -> None:
    """Raises ConfigError if the models differ in their classes or tokens."""
    if judged.reference is None:
        return
    workload = judged.workload
    try:
        check_forward(judged.reference, workload.train, judged.reference_name, workload.dataset)
    except ConfigError as error:
        raise ConfigError(
            f"reference: '{judged.reference_name}' does not read the rows of '{config.model}': "
            f"expected its float model ({first_line(error).rstrip('.')})."
        ) from error
    example = workload.example()
    count = len(next(iter(example.values())))
    ours, theirs = (
        read_answers(model(**example), workload.task, count).shape
        for model in (judged.model, judged.reference)
    )
    if ours != theirs:
        raise ConfigError(
            f"reference: the output shape of '{judged.reference_name}' for three rows is "
            f"{tuple(theirs)}, of '{config.model}' {tuple(ours)}: expected its float model."
        )
    if config.reference is None or judged.tokenizer is None:
        return
    try:
        other = get_tokenizer(config.reference)
    except UnavailableError:  # a folder without a tokenizer
        return
    if other.get_vocab() != judged.tokenizer.get_vocab():
        raise ConfigError(
            f"reference: '{config.reference}' and '{config.model}' have different vocabularies: "
            "expected the float model of the latter."
        )
