"""Workload of a user's model and data, built from settings."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import get_console
from torch import nn

from chop.base.files import make_folder
from chop.base.notices import assume
from chop.data import (
    BUILTIN_TOKENIZERS,
    check_classes,
    check_vocabulary,
    class_names,
    describe_dataset,
    get_tokenized_dataset,
    has_masks,
    is_running_text,
    label_column,
    load_dataset,
    picture_column,
    with_numbered_labels,
    with_pixels,
    with_plain_cells,
    with_vectors,
)
from chop.data.builtin_names import PREFIX
from chop.data.cells import TEXTS, is_quoted_number
from chop.data.labels import names_in_lists, order_classes, with_binary_labels
from chop.data.table import VECTOR, number_columns, with_input_columns
from chop.errors import MOST_NAMES, ConfigError, check_known, did_you_mean, enumerate_names
from chop.export.qonnx.reader import is_qonnx
from chop.models import BUILTIN_MODELS, builtin_model, check_own, is_own, load_model, read_config
from chop.models.load import continues_texts, saved_model
from chop.models.positions import check_positions, text_config
from chop.runs import MANIFEST
from chop.train import CAUSAL_LM, TASKS, Task, find_task, read_label_column
from chop.train.given.reading import is_numeric
from chop.train.outputs import MULTIOUTPUT
from chop.train.segmentation import SEGMENTATION, SEGMENTATION_TASK
from chop.train.task import JUDGED
from chop.train.tasks import JUDGED_TASK, MULTILABEL, check_is_clear
from chop.workloads.pictures import SETTINGS, get_preprocessing, reduces_labels

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

    from chop.workloads.settings import WorkloadConfig


def load_checkpoint(
    config: WorkloadConfig, load: Callable[..., nn.Module] = load_model
) -> tuple[nn.Module, DatasetDict, Task, Sequence[str], Sequence[str]]:
    """Loads the model, its tokenized data, its task, and the names of its inputs and outputs.

    The names are the columns that are its input vector, and its classes in their order; both are
    empty if there are none.

    Args:
        config: the settings.
        load: builds the model, with the arguments of `load_model`.

    Raises:
        ConfigError: if model, data set and settings do not fit together.
        UnavailableError: if one of them is missing.
    """
    place = Path(config.model).expanduser()
    if (place / MANIFEST).is_file() and not (place / "config.json").is_file():
        folder, saved = shlex.quote(config.model), saved_model(place)
        advice = (
            f"chop compress {folder} shows which model it contains. Commands such as chop "
            "evaluate take a run's folder as their argument."
            if saved is None
            else f"pass its model '{saved}'."
        )
        raise ConfigError(
            f"model: '{config.model}' is the output folder of a chop command, expected a float "
            f"model: {advice}"
        )
    if config.dataset is None:
        raise ConfigError(
            f"model '{config.model}' is not built in and needs a data set: pass --dataset, or for "
            f"a built-in model {did_you_mean(config.model, BUILTIN_MODELS)}"
        )
    if is_own(config.model):
        check_own(config.model, config.weights)
    make_folder(config.out)
    data = _load_data(config)
    task = _get_task(config, data)
    if task.takes_names:
        check_classes(data, config.dataset)
    elif config.class_names is not None and task.name not in (MULTILABEL, JUDGED):
        raise ConfigError(
            f"class_names: applies to classes, and the task of '{config.dataset}' is {task.name}; "
            "--task names another."
        )
    classes: Sequence[str] = ()
    if task.name == MULTILABEL:
        known = _get_label_numbers(config)
        classes = order_classes(names_in_lists(data) or [], known or {})
        data = with_binary_labels(data, known, is_closed=config.class_names is not None)
    model = load(
        config.model,
        num_labels=_num_labels(config, data, task),
        task=None if is_own(config.model) else task.auto_task,
        weights=config.weights,
    )
    if task.takes_names:
        known = getattr(getattr(model, "config", None), "label2id", None)
        if config.class_names is not None:
            known = _get_label_numbers(config)
        data = with_numbered_labels(data, known, is_closed=config.class_names is not None)
        classes = class_names(data) or ()
    table, data = data, _as_numbers(config, model, data, task)
    is_joined = VECTOR in {*data["train"].column_names} - {*table["train"].column_names}
    columns = number_columns(table, [*task.parts]) if is_joined else []
    if config.own_functions.evaluate is None:
        return model, data, task.with_metric(config.metric), columns, classes
    return model, data, task if config.task else JUDGED_TASK, columns, classes


def get_data_task(config: WorkloadConfig) -> Task:
    """Returns the task of the data in the settings, from their labels unless a task is set."""
    return _get_task(config, _load_data(config))


def tokenizer_name(config: WorkloadConfig) -> str:
    """Returns the tokenizer in the settings. Default: the model's own, not a built-in one."""
    if config.tokenizer is not None:
        return config.tokenizer
    builtin = builtin_model(config.model)
    if builtin is not None:
        return f"{PREFIX}{builtin}"
    return f"./{config.model}" if config.model in BUILTIN_TOKENIZERS else config.model


def _load_data(config: WorkloadConfig) -> DatasetDict:
    """Loads the data, with labels unless the task or the model needs only text.

    For running text, `limit` counts windows, which are cut later.
    """
    limit = config.limit if config.stride is None else None
    requested = None if config.task is None else find_task(config.task)
    is_language_model = continues_texts(_architecture(config.model))
    if requested is None and config.label_column is None and is_language_model:
        data = load_dataset(config.dataset, limit=limit, labeled=False)
        if label_column(data["train"].column_names) is None:
            return data
    is_judged = config.own_functions.evaluate is not None
    labeled = (
        not is_judged
        if requested is None
        else requested.labels_from is None and not requested.parts
    )
    if requested is not None and requested.name == MULTIOUTPUT:
        raise ConfigError(
            f"task: '{MULTIOUTPUT}' of a table needs its label columns, each with a "
            "task, as in --task kind=classification,age=regression."
        )
    if requested is not None and requested.parts and config.label_column is not None:
        raise ConfigError(
            "label_column: the task names the label columns already: remove this setting."
        )
    data = load_dataset(config.dataset, limit=limit, label=config.label_column, labeled=labeled)
    data = with_plain_cells(data)
    _check_not_swapped(config, data["train"])
    names = data["train"].column_names
    for name in () if requested is None else requested.parts:
        check_known(name, names, f"data set '{config.dataset}': no label column")
    if config.input_columns is not None:
        parts = () if requested is None else requested.parts
        data = with_input_columns(data, config.input_columns, str(config.dataset), [*parts])
        names = data["train"].column_names
    if names == [label_column(names)]:
        raise ConfigError(
            f"data set '{config.dataset}': no column is left for inputs in addition to the labels "
            f"'{config.label_column or names[0]}'; --label-column names another."
        )
    return data


def _check_not_swapped(config: WorkloadConfig, rows: Dataset) -> None:
    """Raises ConfigError if most labels are different texts, and the texts are few."""
    text, label = config.text_column, config.label_column
    column = label_column(rows.column_names)
    if (
        text is None
        or label is None
        or getattr(rows.features.get(column), "dtype", "") not in TEXTS
    ):
        return
    labels = len(rows.unique(column))
    if 2 * labels <= len(rows):
        return
    whole = load_dataset(config.dataset, limit=config.limit, labeled=False)["train"]
    if text in whole.column_names and 2 * (texts := len({*map(str, whole[text])})) <= labels:
        raise ConfigError(
            f"text_column and label_column seem to be swapped: '{label}' has {labels} different "
            f"texts in {len(rows)} rows, and '{text}' {texts}; use --text-column {label} "
            f"--label-column {text}."
        )


def _architecture(name: str) -> str:
    """Returns the class name in a checkpoint's configuration; "" if it is missing."""
    has_none = is_own(name) or is_qonnx(name)
    return "" if has_none else (read_config(name).architectures or [""])[0]


def _get_label_numbers(config: WorkloadConfig) -> Mapping[str, int] | None:
    """Returns class numbers by name from the settings, or from a checkpoint's configuration."""
    if config.class_names is not None:
        return {name: number for number, name in enumerate(config.class_names)}
    name = config.model
    return None if is_own(name) or is_qonnx(name) else read_config(name).label2id


def _get_task(config: WorkloadConfig, data: DatasetDict) -> Task:
    if config.task is not None:
        task = find_task(config.task)
        if has_masks(data) and task.name not in (SEGMENTATION, JUDGED):
            raise ConfigError(
                f"task: '{config.task}' has no masks as labels, and '{config.dataset}' has; use "
                "--task segmentation."
            )
        return task
    column = label_column(data["train"].column_names)
    if column is None:
        return TASKS[CAUSAL_LM] if config.own_functions.evaluate is None else JUDGED_TASK
    if has_masks(data):
        assume(
            f"{SEGMENTATION_TASK.inferred_note} Masks are scaled with their images, by the "
            "nearest pixel."
        )
        return SEGMENTATION_TASK
    if class_names(data) is not None:
        return TASKS["classification"]
    labels, task = read_label_column(data["train"])
    check_is_clear(task, labels)
    return task


def _num_labels(config: WorkloadConfig, data: DatasetDict, task: Task) -> int | None:
    """Returns the number of outputs for a new head; None if the model's own fits.

    A trained head with more classes than occur in the labels is not replaced.
    """
    if task.heads is None:
        return None
    names = class_names(data) if task.takes_names else None
    if names is not None:
        known = _get_label_numbers(config) or {}
        return len(order_classes(names, known)) if task.is_categorical else task.heads([])
    needed = task.heads(read_label_column(data["train"])[0])
    own = _own_classes(config.model), len(config.class_names or ())
    return max(needed, *own) if task.is_categorical else needed


def _own_classes(name: str) -> int:
    """Returns the classes of a checkpoint that was saved as a classifier."""
    is_classifier = _architecture(name).endswith("Classification")
    return (read_config(name).num_labels or 0) if is_classifier else 0


def _as_numbers(
    config: WorkloadConfig, model: nn.Module, data: DatasetDict, task: Task
) -> DatasetDict:
    if picture_column(data) is not None:
        _check_reads_texts(config, "images")
        pictures = get_preprocessing(config, model, describe_dataset(str(config.dataset), data))
        get_console().print(str(pictures), highlight=False, markup=False)
        assume(f"{str(pictures)[0].upper()}{str(pictures)[1:]}.")
        is_reduced = has_masks(data) and reduces_labels(config.model, model)
        if is_reduced:
            assume("Masks count classes from 1, and 0 is void, as preprocessor_config.json says.")
        return with_pixels(data, pictures.info, pictures.size, reduce_labels=is_reduced)
    for name in SETTINGS:
        if getattr(config, name) is not None:
            raise ConfigError(f"{name} is for images: data set '{config.dataset}' has no images.")
    reads_tokens = getattr(model, "main_input_name", None) == "input_ids"
    if not reads_tokens and config.tokenizer is None:
        if config.text_column is not None:
            raise ConfigError("text_column: your own model needs --tokenizer as well.")
        _check_has_numbers(config, data)
        _check_reads_texts(config, "numbers")
        parameters = [*inspect.signature(model.forward).parameters]
        return with_vectors(data, parameters, [*task.parts], config.input_columns or ())
    is_running = config.stride is not None or is_running_text(data)
    data, tokenizer = get_tokenized_dataset(
        data,
        tokenizer_name(config),
        True,
        max_length=config.max_length,
        limit=config.limit if is_running else None,
        stride=config.stride,
        text_column=config.text_column,
        labeled=task.labels_from is None,
    )
    text = text_config(model) if reads_tokens else None
    check_vocabulary(tokenizer, text and text.vocab_size)
    check_positions(config.max_length, model)
    return data


def _check_reads_texts(config: WorkloadConfig, rows: str) -> None:
    """Raises ConfigError for settings of texts if the rows are something else."""
    for name in ("max_length", "stride", "text_column", "tokenizer"):
        if getattr(config, name) is not None:
            raise ConfigError(f"{name}: applies to texts, and '{config.dataset}' has {rows}.")


def _check_has_numbers(config: WorkloadConfig, data: DatasetDict) -> None:
    """Raises ConfigError if all inputs are texts and there is no tokenizer."""
    train = data["train"]
    label = label_column(train.column_names)
    inputs = [name for name in train.column_names if name != label]
    if inputs and not any(is_numeric(train, name) for name in inputs):
        listed = enumerate_names(list(map(repr, inputs)), MOST_NAMES)
        if not any(getattr(train.features[name], "dtype", None) in TEXTS for name in inputs):
            raise ConfigError(
                f"data set '{config.dataset}': expected columns of numbers or texts, got nested "
                f"ones ({listed})."
            )
        if quoted := next(filter(is_quoted_number, (train[0][name] for name in inputs)), None):
            raise ConfigError(
                f"data set '{config.dataset}' has numbers written as texts, such as {quoted!r:.40} "
                f"({listed}): save them as numbers, without quotes."
            )
        raise ConfigError(
            f"data set '{config.dataset}' has only texts ({listed}): pass the tokenizer of "
            f"'{config.model}' with --tokenizer, a folder or a hub name."
        )
