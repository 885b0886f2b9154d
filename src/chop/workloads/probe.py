"""Probe of a model before training or capture: its weights, and one call on its rows."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from chop.base.notices import assume, current_assumptions, get_logger, in_words
from chop.captured.leaves import tensors_in
from chop.captured.wrappers import check_has_forward, check_has_values
from chop.data.table import VECTOR
from chop.errors import (
    MOST_NAMES,
    ChopError,
    ConfigError,
    describe,
    enumerate_names,
    first_line,
)
from chop.models import reason_of_user_code
from chop.train import Rows, Task
from chop.train.calibration import example_inputs
from chop.train.feed import eval_mode
from chop.train.model_io import LABELS, advise_inputs, input_columns, read_answers, read_output
from chop.train.segmentation import SEGMENTATION
from chop.train.tasks import BINARY, CLASSIFICATION
from chop.train.token_ids import check_token_ids
from chop.train.unlabeled import takes_batch

MAX_NAMED = 5
"""Number of parameters and buffers that a message names."""
TOKENIZER_COLUMNS = ("attention_mask", "token_type_ids", "special_tokens_mask")
"""Columns that tokenizers add, also for models without such an input."""
NO_PADDING = "no padding token is defined"
"""Part of the message of transformers about a model without a padding token."""
TYPO = 0.85
"""Least similarity of a misspelled name: a column `position` is none of `position_ids`."""

MAX_ROW = 1 << 20
"""Maximum number of values that are tried as one row, to bound the time of a message."""

log = get_logger(__name__)


def check_weights(model: nn.Module) -> None:
    """Checks that no parameter or buffer has NaN; skips those without data.

    Raises:
        ConfigError: if some do; the message lists them.
    """
    with_nan = []
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor) or is_lazy(value) or value.is_meta:
            continue
        if value.is_floating_point() or value.is_complex():
            wide = value.float() if value.element_size() == 1 else value  # 8-bit floats
            count = int(wide.isnan().count_nonzero())  # a sum widens every boolean
            with_nan += [f"{name} ({count} of {value.numel()} numbers)"] if count else []
    if with_nan:
        raise ConfigError(
            f"the weights of the float model have NaN: {enumerate_names(with_nan, MAX_NAMED)}. "
            "Training may have diverged: use a lower learning rate, or other weights."
        )


def check_forward(
    model: nn.Module, rows: Rows, name: str, dataset: str, columns: Sequence[str] = ()
) -> None:
    """Calls a model on three rows without gradients; restores modes and the random state.

    Args:
        model: the model.
        rows: rows of the data set.
        name: name of the model.
        dataset: name of the data set.
        columns: columns of a table that are the input vector.
    Raises:
        ConfigError: if its forward fails. The message has the line and describes the rows. Also if
            a column that is not passed resembles an input without a column.
    """
    check_has_forward(model, f"'{name}'")
    check_has_values(model, name)
    inputs = example_inputs(model, rows)
    fed = input_columns(model, [*rows.columns, LABELS])
    tokens = {key: rows.columns[column] for key, column in fed.items() if column in rows.columns}
    check_token_ids(model, tokens, name, f"'{dataset}'")
    skipped = _skipped_columns(model, rows, inputs, name)
    try:
        with torch.no_grad(), torch.random.fork_rng(), eval_mode(model):
            state = torch.get_rng_state()
            output = model(**inputs)
            draws = not torch.equal(state, torch.get_rng_state())
            is_random = draws and _differ(output, model(**inputs))
    except ChopError:
        raise
    except (Exception, SystemExit) as error:
        if NO_PADDING in str(error):
            raise ConfigError(
                f"'{name}' has no pad_token_id, which batches of texts need: write the padding "
                "token's ID of the tokenizer to its config (pad_token_id in config.json)."
            ) from error
        file = re.match(r".+\.py(?=:)", name)
        plain = f"{type(error).__name__}: {first_line(error).removesuffix('.')}."
        reason = reason_of_user_code(error, Path(file[0])) if file else plain
        raise ConfigError(
            f"'{name}' cannot take rows of '{dataset}', {_listed(inputs)}: {reason} "
            "The model is called with only these columns, in these shapes and types"
            f"{_advise_columns(rows, columns)}.{rows.about_vector}"
            f"{skipped}"
            f"{_advise_order(rows, inputs) or advise_inputs(model, inputs, plain, rows.columns)}"
            f"{_advise_batch(model, rows)}"
            f"{in_words(current_assumptions())}"
        ) from error
    _check_has_output(output, name)
    _check_is_no_nan(model, output, name, dataset)
    if is_random:
        assume(
            f"'{name}' draws random numbers in evaluation mode, and its outputs change from call "
            "to call. A common cause is F.dropout without training=self.training.",
            log,
        )
    if skipped and name != "teacher":
        assume(f"{skipped.strip()} They are not used.", log)


def _advise_columns(rows: Rows, columns: Sequence[str]) -> str:
    """Returns the options that select other columns or shapes, or no text."""
    if columns:
        listed = enumerate_names([*columns], MOST_NAMES)
        return f": {VECTOR} has the columns {listed}; --input-columns selects them"
    return "; --image-size and --channels change images" * ("pixel_values" in rows.columns)


def _advise_order(rows: Rows, inputs: Mapping[str, Tensor]) -> str:
    """Returns a sentence if a row has one number as input and several as labels, or no text."""
    are_single = all(value.dim() == 1 for value in inputs.values())
    labels = rows.labels
    if not are_single or not isinstance(labels, Tensor) or labels.dim() < 2:
        return ""
    return " Inputs and labels seem to be swapped: pass (X, y), the labels last."


def _advise_batch(model: nn.Module, rows: Rows) -> str:
    """Returns a sentence if a model takes the whole data as one row of floats, or no text."""
    (data, *others) = rows.columns.values()
    if others or not isinstance(data, Tensor) or not data.is_floating_point():
        return ""
    if data.numel() > MAX_ROW:
        return ""
    if not takes_batch(model, dict.fromkeys(rows.columns, data[None])):
        return ""
    return (
        f" The model takes all the data, {tuple(data.shape)}, as one row. If it is one row x, add "
        "the batch dimension: pass x[None], or X[:1] in place of X[0]."
    )


def _differ(output: Any, other: Any) -> bool:
    """Returns True if tensors of two outputs differ; NaN equals NaN."""
    pairs = zip(tensors_in(output), tensors_in(other), strict=False)
    return any(
        x.shape != y.shape or not torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in pairs
    )


def _check_has_output(output: Any, name: str) -> None:
    """Raises ConfigError if a model returns nothing, or Python values without a tensor."""
    if output is None:
        raise ConfigError(
            f"'{name}': its forward returns None, expected an output; add a return statement."
        )
    is_plain = isinstance(output, Real | str | np.ndarray | list | tuple | Mapping)
    if is_plain and not list(tensors_in(output)):
        raise ConfigError(
            f"'{name}': its forward returns {describe(output)}, expected a tensor, without .item() "
            "or .numpy()."
        )


def _check_is_no_nan(model: nn.Module, output: Any, name: str, dataset: str) -> None:
    """Raises ConfigError if all floating-point outputs of a model are NaN."""
    values = [x for x in tensors_in(output) if x.is_floating_point() and x.numel()]
    if values and all(bool(x.isnan().all()) for x in values):
        check_weights(model)
        raise ConfigError(
            f"'{name}' returns only NaN for rows of '{dataset}': check its weights and their scale."
        )


def _skipped_columns(model: nn.Module, rows: Rows, inputs: Mapping[str, Tensor], name: str) -> str:
    """Returns a sentence about the columns that no input of the model takes, or an empty text."""
    is_by_name = any(column in inputs for column in rows.columns)
    skipped = [
        column
        for column in rows.columns
        if is_by_name and column not in inputs and column not in TOKENIZER_COLUMNS
    ]
    free = [x for x in inspect.signature(model.forward).parameters if x not in inputs]
    for column in skipped:
        near = difflib.get_close_matches(column, free, 1, TYPO)
        if near:
            raise ConfigError(
                f"'{name}' has no input '{column}': did you mean '{near[0]}'? Columns have the "
                "names of forward's arguments."
            )
    listed = enumerate_names([*map(repr, skipped)], MAX_NAMED)
    return f" No input has the name of the columns {listed}." if skipped else ""


def assume_scaled_logits(task: Task, model: nn.Module, rows: Rows) -> None:
    """Records an assumption if logits of images are resized to their masks.

    Args:
        task: task of the rows.
        model: model on its device, in evaluation mode.
        rows: rows with labels.
    """
    if task.name != SEGMENTATION:
        return
    with torch.no_grad(), torch.random.fork_rng():
        shape = read_output(model(**example_inputs(model, rows, 1)))[1].shape
    size, wanted = tuple(shape[-2:]), tuple(rows.labels[0].shape[-2:])
    if len(shape) > 2 and size != wanted:
        assume(
            f"The model gives logits of {size[0]} x {size[1]} pixels, masks have {wanted[0]} x "
            f"{wanted[1]}: logits are scaled to the masks, bilinearly, before they are compared."
        )


def check_classes(
    task: Task, model: nn.Module, splits: Sequence[Rows], names: Sequence[str] = ()
) -> None:
    """Checks the labels of all splits against the classes of the model's outputs.

    Records an assumption if no row is of the last classes.

    Args:
        task: task of the rows.
        model: model on its device, in evaluation mode.
        splits: labeled rows of each split, training rows first.
        names: names of the classes of the rows, by their numbers; none if labels are numbers.
    Raises:
        ConfigError: if a label is not one of the classes.
    """
    if not task.is_categorical:
        return
    inputs = example_inputs(model, splits[0], 1)
    with torch.no_grad(), torch.random.fork_rng(), eval_mode(model):
        answers = read_answers(model(**inputs), task, 1)
    if task.name == CLASSIFICATION.name and len(names) > answers.shape[-1]:
        if (answers.shape[-1], len(names)) == (1, 2):
            raise ConfigError(
                f"the model returns one number per row, and the classes are {' and '.join(names)}: "
                f"set --task to {BINARY}. A positive number then means {names[1]}."
            )
        labels = splits[0].labels
        trained = (
            {*labels.flatten().tolist()} if isinstance(labels, Tensor) else {*range(len(names))}
        )
        others = [name for number, name in enumerate(names) if number not in trained]
        lacking = f"; no training row is of {enumerate_names(others, MOST_NAMES)}" if others else ""
        raise ConfigError(
            f"the model returns {answers.shape[-1]} classes, and the rows have {len(names)}, "
            f"{enumerate_names(names, MOST_NAMES)}{lacking}: remove the rows of other classes"
            f"{', or their names in --class-names,' * bool(others)} or change the model."
            f"{_advise_spelling(names)}"
        )
    for rows in splits:
        task.check_labels(rows.labels)
        task.check(answers[:1].expand(len(rows), *answers.shape[1:]), rows.labels)
    if task.takes_names and answers.dim() == 2:
        _assume_other_classes(answers.shape[1], splits)


def _advise_spelling(names: Sequence[str]) -> str:
    """Returns a sentence if names of classes differ only in case or spaces, or no text."""
    spellings: dict[str, list[str]] = {}
    for name in names:
        spellings.setdefault("".join(name.split()).casefold(), []).append(repr(name))
    alike = [" and ".join(group) for group in spellings.values() if len(group) > 1]
    listed = enumerate_names(alike, MAX_NAMED)
    return f" Write each class in one way: only case or spaces differ in {listed}." * bool(alike)


def _assume_other_classes(count: int, splits: Sequence[Rows]) -> None:
    """Records an assumption if no label (N,) is the last class of `count` outputs."""
    labels = [each for rows in splits if isinstance(each := rows.labels, Tensor) and len(rows)]
    largest = max((int(each.max()) for each in labels if each.dim() == 1), default=count)
    if largest + 1 < count:
        assume(
            f"The model has {count} outputs, and the labels are at most {largest}: no row is of "
            "the classes above."
        )


def _listed(inputs: Mapping[str, Tensor]) -> str:
    kinds = {name: str(value.dtype).removeprefix("torch.") for name, value in inputs.items()}
    return ", ".join(f"{name} {kind} {tuple(inputs[name].shape)}" for name, kind in kinds.items())
