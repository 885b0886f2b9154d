"""Inputs and outputs of Hugging Face, plain PyTorch and captured models.

Shapes: B rows, C classes.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from chop.base.nested import tree_parts
from chop.base.notices import assume, get_logger, warn_once
from chop.captured.module import CapturedModule
from chop.captured.wrappers import check_is_unwrapped, unwrapped
from chop.errors import ConfigError
from chop.train.task import Task
from chop.train.tasks import CLASSIFICATION

log = get_logger(__name__)

LABELS = "labels"
POSITION = "input {}"
"""Name of an unnamed column, such as X of `(X, y)`. No parameter can have this name."""

TEST_ROWS = " If some are test rows, pass (X, y) and test=(X_test, y_test)."


def input_columns(model: nn.Module, columns: Iterable[str]) -> dict[str, str]:
    """Maps parameters of the model's `forward` to columns of the data set.

    Columns are matched by name. If no name matches, a single input column feeds the first
    parameter, so that `forward(x)` works. Unnamed columns (`POSITION`) feed the parameters in
    order. Columns without a matching parameter are skipped, such as `token_type_ids` of a captured
    graph.

    Warns: a captured graph skips a column that its model would read, such as `attention_mask`.
        Labels may be skipped; the loss is then computed from the logits.

    Raises:
        ConfigError: if no column matches an input of the model.
    """
    columns = list(columns)
    if isinstance(model, torch.jit.ScriptModule):  # which has no Python signature
        check_is_unwrapped(model, "train and evaluate")
    parameters = inspect.signature(unwrapped(model).forward).parameters
    if POSITION.format(0) in columns:
        return _by_position(model, columns, parameters)
    if all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters.values()):
        return {name: name for name in columns}
    taken = {name: name for name in columns if name in parameters}
    inputs = [name for name in columns if name != LABELS]
    if not taken.keys() - {LABELS} and len(inputs) == 1 and LABELS not in parameters:
        return {next(iter(parameters)): inputs[0]}
    if not taken.keys() - {LABELS}:
        advice = "If these are the numbers of one input, pass a pandas frame, or (X, y) of arrays."
        if "pixel_values" in columns:
            advice = "The model does not read images."
        elif "input_ids" in parameters:
            advice = "Tokenize texts: chop.data.get_tokenized_dataset(data, checkpoint)."
        raise ConfigError(
            f"{type(model).__name__}.forward takes {list(parameters)}, "
            f"but the data set has {columns}: expected at least one input in common. {advice}"
        )
    if isinstance(model, CapturedModule):
        _warn_about_lost_columns(model, [name for name in columns if name not in taken])
    return taken


def fed_columns(model: nn.Module, columns: Iterable[str], task: Task) -> dict[str, str]:
    """Maps parameters to columns like `input_columns`, with labels if the model's own loss is used.

    Raises:
        ConfigError: if no column matches an input of the model.
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
        way_out = "pass rows as mappings with input names."
        if len(names) == 1:
            way_out = (
                "the last array counts as labels, and weights of rows are not read. A model whose "
                "input is a list of tensors needs a wrapper with a parameter for each."
            )
        raise ConfigError(
            f"{type(model).__name__}.forward takes {list(parameters)}, but the data have "
            f"{len(inputs)} unnamed inputs; {way_out}{TEST_ROWS * (len(inputs) == 3)}"
        )
    fed = dict(zip(names, inputs, strict=False))
    return fed if LABELS in fed or LABELS not in parameters else {**fed, LABELS: LABELS}


def _warn_about_lost_columns(model: CapturedModule, skipped: Iterable[str]) -> None:
    ignored = set(model.record.ignored_inputs) - {LABELS, "token_type_ids"}
    lost = [name for name in skipped if name in ignored]
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
    """Returns the loss and the logits of a model's output.

    Args:
        output: a mapping or object with `logits` (torchvision's `out`) and optionally `loss`, a
            tuple that starts with them, or the logits themselves.
        labels: used for the task's loss, if the output has no loss or the task's takes precedence.
        task: task of the model.
    Returns: a scalar, and the logits.
    Raises:
        ConfigError: if the output has no logits, or they do not fit the task.
    """
    if task.read is not None:
        answers = task.read(output, len(labels))
        return task.loss(*task.compare(answers, labels)), answers
    loss, logits = read_output(output)
    if loss is None or not task.takes_model_loss:
        loss = task.loss(*task.compare(logits, labels))
    return loss, logits


def batch_loss(output: Any, labels: Tensor, task: Task) -> Tensor:
    """Returns the loss of a model's output or of the user's function; see `loss_and_logits`."""
    if task.output_loss is not None:
        return task.output_loss(output, _as_given(task, labels))
    return loss_and_logits(output, labels, task)[0]


def warn_about_probabilities(output: Any, task: Task) -> None:
    """Warns if outputs are probabilities, of which the cross entropy has small gradients."""
    if task.name != CLASSIFICATION.name or task.output_loss is not None:
        return
    scores = read_output(output)[1].detach()
    if scores.dim() == 2 and scores.shape[1] > 1 and bool((scores >= 0).all()):
        sums = scores.sum(1, dtype=torch.float32)
        if torch.allclose(sums, torch.ones_like(sums), atol=1e-3):
            warn_once(
                "the model returns probabilities, as softmax does, and training expects logits. "
                "Leave out the softmax, or train with chop.compress(loss=...).",
                UserWarning,
            )


def warn_about_other_logits(output: Any, labels: Any, task: Task) -> None:
    """Warns if another output than the first of a tuple has a number for each class of the labels.

    Args:
        output: output of the model for a batch.
        labels: labels of all rows.
        task: task of the model; only `classification` is checked.
    """
    if task.name != CLASSIFICATION.name or not isinstance(output, tuple | list):
        return
    logits, count = read_output(output)[1], int(labels.max()) + 1
    fitting = [
        place
        for place, x in enumerate(output)
        if isinstance(x, Tensor) and x.dim() == 2 and x.shape[1] == count
    ]
    if fitting and logits.dim() == 2 and logits.shape[1] != count:
        assume(
            f"the first output of the model, with {logits.shape[1]} numbers a row, is read as the "
            f"logits. Output {fitting[0]} (from 0) has {count} numbers a row, one for each class "
            "of the labels: if it is the logits, let forward return it first.",
            log,
        )


def loss_and_answers(output: Any, labels: Tensor, task: Task) -> tuple[Tensor, Tensor]:
    """Returns the task's or the user's loss, ignoring the model's own, and its terms, (K, ...).

    The terms are the answers or labels that the loss averages over.
    """
    if task.output_loss is not None:
        return task.output_loss(output, _as_given(task, labels)), labels
    answers, expected = task.compare(read_answers(output, task, len(labels)), labels)
    return task.loss(answers, expected), answers


def _as_given(task: Task, labels: Tensor) -> Any:
    return labels if task.layout is None else task.layout.given(labels)


def read_answers(output: Any, task: Task, rows: int) -> Tensor:
    """Extracts the answers that a task compares from a model's output.

    Args:
        output: see `read_output`. Nested tensors of any shape if the task reads all outputs.
        task: task of the model.
        rows: number of rows in the batch.
    Raises:
        ConfigError: if the output has no logits, or, if the task reads all outputs, no number per
            row.
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
    """Returns the model's own loss, or None, and its logits.

    Raises:
        ConfigError: if the output has no logits.
    """
    loss, logits = _read(output)
    if isinstance(logits, Tensor) and logits.is_complex():
        raise ConfigError(
            f"expected a model that returns real numbers, got {logits.dtype}: let its forward "
            "return their magnitude (.abs()) or parts."
        )
    if isinstance(logits, Tensor) and (logits.dtype == torch.bool or not logits.dim()):
        got = "bool" if logits.dim() else "a single number"
        raise ConfigError(
            f"expected a model that returns the scores of each row, got {got}: let its forward "
            "return them before they are compared or averaged."
        )
    if not isinstance(logits, Tensor):
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


def advise_inputs(
    model: nn.Module, inputs: Mapping[str, Tensor], reason: str, columns: Collection[str] = ()
) -> str:
    """Returns sentences about the dtype or the layout of inputs that a model rejected, or no text.

    Args:
        model: the model.
        inputs: rows (B, ...) by name, without labels.
        reason: message of the model's error.
        columns: names of the columns of the rows.
    """
    if "required positional argument" in reason and POSITION.format(0) in columns:
        given = inspect.signature(model.forward).parameters.values()
        names = ", ".join(f"'{each.name}': ..." for each in given if each.default is each.empty)
        return (
            " The last array of a tuple counts as labels. Pass several inputs as ((a, b), y), or "
            f"as {{{names}}} where no labels are needed."
        )
    is_dtype = "dtype" in reason or "should be the same" in reason
    advice = _advise_dtype(model, inputs) if is_dtype else ""
    if is_dtype or "conv" in reason or "channels" in reason:
        advice += _advise_channels(model, inputs)
    return advice + _advise_length(model, inputs)


def _advise_length(model: nn.Module, inputs: Mapping[str, Tensor]) -> str:
    """Returns a sentence if rows have more tokens than a model has positions, or no text."""
    most = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    ids = inputs.get("input_ids")
    if ids is None or not isinstance(most, int) or ids.shape[-1] <= most:
        return ""
    return (
        f" Rows have up to {ids.shape[-1]} tokens, and the model reads at most {most}: "
        f"cut the rows, input_ids[:, :{most}], or tokenize with truncation=True, max_length={most} "
        f"(on the command line, --max-length {most})."
    )


def _advise_dtype(model: nn.Module, inputs: Mapping[str, Tensor]) -> str:
    kinds = {each.dtype for each in model.parameters() if each.is_floating_point()}
    others = [name for name, x in inputs.items() if {x.dtype} != kinds]
    if len(kinds) != 1 or len(others) != 1:
        return ""
    (name,) = others
    kind = str(*kinds).removeprefix("torch.")
    array = f", or for an array X.astype('{kind}')" * (kind in ("float16", "float32", "float64"))
    is_pixels = inputs[name].dtype == torch.uint8
    pixels = " Divide it by 255 if the model was trained on pixels of 0 to 1." * is_pixels
    tensor = "X.float()" if kind == "float32" else f"X.to(torch.{kind})"
    return f" The weights are {kind}: pass {name} as {kind}, such as {tensor}{array}.{pixels}"


def _advise_channels(model: nn.Module, inputs: Mapping[str, Tensor]) -> str:
    """Returns a sentence if rows have not the channels that the model's first convolution reads."""
    convolutions = [
        (name, module)
        for name, module in model.named_modules()
        if getattr(module, "in_channels", 0)
        and isinstance(getattr(module, "kernel_size", None), tuple)  # one size in own layers
    ]
    if not convolutions or len(inputs) != 1:
        return ""
    ((name, conv), shape) = convolutions[0], [*next(iter(inputs.values())).shape[1:]]
    count, sides = conv.in_channels, len(conv.kernel_size)
    if not shape or (len(shape) == sides + 1 and shape[0] == count):
        return ""
    advice = ""
    if len(shape) == sides and count == 1:
        advice = ": pass X[:, None]"
    elif len(shape) == sides + 1 and shape[-1] == count:
        advice = ": pass X.movedim(-1, 1), or numpy.moveaxis(X, -1, 1)"
    channels = f"{count} channel{'s' * (count > 1)}"
    return f" The convolution '{name}' reads {channels} in dimension 1 of the rows{advice}."
