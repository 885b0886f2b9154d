"""Model inputs and outputs of any origin: Hugging Face, plain or captured.

Shapes: B rows, C classes.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from chop.base.nested import tree_parts
from chop.captured.module import CapturedModule
from chop.errors import ConfigError
from chop.train.task import Task
from chop.train.tasks import CLASSIFICATION

LABELS = "labels"
POSITION = "input {}"
"""The name of a column that has none, such as X of `(X, y)`: no parameter can have it."""


def input_columns(model: nn.Module, columns: Iterable[str]) -> dict[str, str]:
    """Parameter of the model's `forward` -> the column of the data set that feeds it.

    A captured graph need not take every column (`token_type_ids`, `attention_mask`), and a
    column that it does not take must not reach it. Columns are matched by name; where none
    matches, a single input column feeds the first parameter, so that `forward(x)` works. Columns
    without names (`POSITION`) feed the parameters in their order.

    Warns: a captured graph leaves out a column that its model would read, `attention_mask` for
        example; labels may be left out, the loss is then computed from the logits.

    Raises:
        ConfigError: no input of the model can be fed.
    """
    columns = list(columns)
    parameters = inspect.signature(model.forward).parameters
    if POSITION.format(0) in columns:
        return _by_position(model, columns, parameters)
    if all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters.values()):
        return {name: name for name in columns}
    taken = {name: name for name in columns if name in parameters}
    inputs = [name for name in columns if name != LABELS]
    if not taken.keys() - {LABELS} and len(inputs) == 1 and LABELS not in parameters:
        return {next(iter(parameters)): inputs[0]}
    if not taken.keys() - {LABELS}:
        raise ConfigError(
            f"{type(model).__name__}.forward takes {list(parameters)}, "
            f"but the data set has {columns}: expected at least one input in common."
        )
    if isinstance(model, CapturedModule):
        _warn_about_lost_columns(model, [name for name in columns if name not in taken])
    return taken


def fed_columns(model: nn.Module, columns: Iterable[str], task: Task) -> dict[str, str]:
    """The same, of input columns and labels; labels only where the model's own loss counts.

    Raises:
        ConfigError: no input of the model can be fed.
    """
    fed = input_columns(model, [*columns, LABELS])
    return fed if task.takes_model_loss else {n: c for n, c in fed.items() if c != LABELS}


def _by_position(
    model: nn.Module, columns: list[str], parameters: Mapping[str, inspect.Parameter]
) -> dict[str, str]:
    inputs = [name for name in columns if name != LABELS]
    names = [
        name
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(names) < len(inputs):
        raise ConfigError(
            f"{type(model).__name__}.forward takes {list(parameters)}, but the data have "
            f"{len(inputs)} inputs: name them by rows that are mappings."
        )
    fed = dict(zip(names, inputs, strict=False))
    return fed if LABELS in fed or LABELS not in parameters else {**fed, LABELS: LABELS}


def _warn_about_lost_columns(model: CapturedModule, left_out: Iterable[str]) -> None:
    ignored = set(model.record.ignored_inputs) - {LABELS, "token_type_ids"}
    lost = [name for name in left_out if name in ignored]
    if lost:
        names = [*model.record.example_inputs, *lost]
        warnings.warn(
            f"the graph was captured without {', '.join(lost)}, which the data set has and its "
            f"model reads; capture it with MaseGraph(model, hf_input_names={names})",
            stacklevel=3,
        )


def loss_and_logits(
    output: Any, labels: Tensor, task: Task = CLASSIFICATION
) -> tuple[Tensor, Tensor]:
    """The loss and the logits of a model's output.

    Args:
        output: a mapping or object with `logits` (torchvision's `out`) and perhaps `loss`, a tuple
            that starts with them, or the logits themselves.
        labels: of these rows; the task's loss with them counts where the output has none, or the
            task's own wins.
        task: what the model is asked to do.
    Returns: a scalar, and the logits.
    Raises:
        ConfigError: the output has no logits, or they do not fit the task.
    """
    if task.read is not None:
        answers = task.read(output, len(labels))
        return task.loss(*task.compare(answers, labels)), answers
    loss, logits = read_output(output)
    if loss is None or not task.takes_model_loss:
        loss = task.loss(*task.compare(logits, labels))
    return loss, logits


def batch_loss(output: Any, labels: Tensor, task: Task) -> Tensor:
    """The loss of a model's output, that of the user where there is one; see `loss_and_logits`."""
    if task.output_loss is not None:
        return task.output_loss(output, _as_given(task, labels))
    return loss_and_logits(output, labels, task)[0]


def loss_and_answers(output: Any, labels: Tensor, task: Task) -> tuple[Tensor, Tensor]:
    """The loss of the task or of the user, which the model's own does not replace, and the answers
    or labels that it is the mean of, (K, ...)."""
    if task.output_loss is not None:
        return task.output_loss(output, _as_given(task, labels)), labels
    answers, expected = task.compare(read_answers(output, task, len(labels)), labels)
    return task.loss(answers, expected), answers


def _as_given(task: Task, labels: Tensor) -> Any:
    return labels if task.layout is None else task.layout.given(labels)


def read_answers(output: Any, task: Task, rows: int) -> Tensor:
    """Extracts the answers that a task compares from a model's output.

    Args:
        output: see `read_output`. A task that reads everything has nested tensors of any shape.
        task: task of the model.
        rows: in the batch.
    Raises:
        ConfigError: the output has no logits; of a task that reads all, no number for each row.
    """
    if task.read is not None:
        return task.read(output, rows)
    if not task.reads_all:
        return read_output(output)[1]
    parts = [x for x in _tensors(output) if x.is_floating_point()]
    if not parts or any(x.dim() == 0 or len(x) != rows for x in parts):
        raise ConfigError(
            f"expected outputs with numbers for each of the {rows} rows of a batch, got shapes "
            f"{[tuple(x.shape) for x in parts]}."
        )
    return torch.cat([x.reshape(rows, -1).float() for x in parts], 1)


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    parts = (tree_parts(output) or {}).values()
    return [x for part in parts for x in _tensors(part)]


def read_output(output: Any) -> tuple[Tensor | None, Tensor]:
    """The model's own loss, if it gives one, and its logits.

    Raises:
        ConfigError: the output has no logits.
    """
    loss, logits = _read(output)
    if logits is None:
        got = type(output).__name__
        if isinstance(output, Mapping):
            got += f" with {', '.join(map(repr, output))}"
        raise ConfigError(
            f"expected a model that returns logits, a tuple of loss and logits, or something with "
            f"'logits', got a {got}: wrap the model in a class whose forward returns the logits."
        )
    return loss, logits


def _read(output: Any) -> tuple[Tensor | None, Tensor | None]:
    if isinstance(output, Tensor):
        return None, output
    if isinstance(output, Mapping):
        return output.get("loss"), output.get("logits", output.get("out"))
    if hasattr(output, "logits"):
        return getattr(output, "loss", None), output.logits
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        has_loss = output[0].dim() == 0 and len(output) > 1
        return (output[0], output[1]) if has_loss else (None, output[0])
    return None, None
