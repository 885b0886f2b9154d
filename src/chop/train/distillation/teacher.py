"""Teacher of a distillation: a frozen model, its outputs, and labels derived from them.

Shapes: B rows, T tokens, C classes, N rows of the data.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop.base.files.limits import reached_limit
from chop.captured.wrappers import check_is_module
from chop.data.labels import MAX_LISTED
from chop.errors import ConfigError, enumerate_names, first_line
from chop.ir.graph import MaseGraph
from chop.ir.storage.checkpoint import find_checkpoint
from chop.models import builtin_model, load_model
from chop.models.load import WEIGHT_SUFFIXES, continues_texts
from chop.train.distillation.soft_losses import binary_divergence
from chop.train.feed import ROW, Answered, Feed, eval_mode
from chop.train.model_io import LABELS, input_columns, read_answers
from chop.train.rows import Rows, padding_token
from chop.train.segmentation import SEGMENTATION
from chop.train.task import IGNORED, TASKS, Task
from chop.train.tasks import CAUSAL_LM

STORED_BYTES = 2**28
"""Maximum size of a teacher's outputs in memory; larger ones are computed in each step."""


class Teacher:
    """Frozen model that runs in evaluation mode and without gradients.

    Answers to all rows are computed once, in batches that do not depend on the order of training,
    and stored if they take at most `STORED_BYTES`.

    Args:
        given: module, graph, or path of a checkpoint or model folder, see `load_teacher`.

    Attributes:
        model: the module. It is not changed; on another device, a copy is used.
    """

    def __init__(self, given: Any) -> None:
        self.model = load_teacher(given)
        self._copy: nn.Module | None = None
        self._is_ragged = False
        self._key: tuple[Any, ...] = ()
        self._rows: Rows | None = None
        self._stored: list[Tensor] | None = None

    @classmethod
    def of(cls, given: Any) -> Teacher:
        """Returns a teacher as it is, and makes one of anything else."""
        return given if isinstance(given, cls) else cls(given)

    def on(self, device: torch.device) -> nn.Module:
        """Returns the model on a device."""
        device = torch.empty(0, device=device).device  # with its index
        if get_device(self.model, device) == device:
            return self.model
        if self._copy is None or get_device(self._copy, device) != device:
            self._copy = copy.deepcopy(self.model).to(device)
        return self._copy

    def run(self, columns: Mapping[str, Tensor], device: torch.device) -> Any:
        """Returns the output for a batch of rows; global generators keep their state."""
        model = self.on(device)
        names = input_columns(model, [x for x in columns if x not in (LABELS, ROW)])
        names.pop(LABELS, None)  # added to unnamed columns
        dtype = next((x.dtype for x in model.parameters() if x.is_floating_point()), None)
        fed = {name: columns[column].to(device) for name, column in names.items()}
        fed = {name: x.to(dtype) if x.is_floating_point() else x for name, x in fed.items()}
        with torch.no_grad(), torch.random.fork_rng(devices=[]), eval_mode(model):
            try:
                return model(**fed)
            except (IndexError, RuntimeError, TypeError, ValueError) as error:
                if isinstance(error, torch.OutOfMemoryError) or reached_limit(error):
                    raise
                shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in fed.items())
                raise ConfigError(
                    f"distill: the teacher cannot take the rows, {shapes}: {first_line(error)}"
                ) from error

    def answers(
        self, batch: Answered, feed: Feed, like: Tensor, *, is_stored: bool = True
    ) -> Tensor:
        """Returns the outputs for a batch in the form of `read_answers`.

        Args:
            batch: the batch.
            feed: origin of the batch.
            like: the student's outputs; stored outputs for texts are padded to their length.
            is_stored: false runs the model, for layers that are watched.
        Raises:
            ConfigError: if an output is NaN or infinite.
        """
        stored = self._answers_to_all(feed) if is_stored else None
        if stored is None:
            output = self.run(batch.columns, feed.device)
            return _checked(read_answers(output, feed.task, len(like)))
        rows = [stored[i] for i in batch.columns[ROW].tolist()]
        return _padded(rows, like.shape[1]) if self._is_ragged else torch.stack(rows)

    def _answers_to_all(self, feed: Feed) -> list[Tensor] | None:
        """Returns the outputs for each row; None if they are too large."""
        key = (feed.batch_size, feed.task.name, str(feed.device))
        if self._rows is feed.rows and self._key == key:
            return self._stored
        self._rows, self._key, self._stored = feed.rows, key, None
        answers: dict[int, Tensor] = {}
        size = 0.0
        for columns in feed.numbered():
            rows = columns[ROW].tolist()
            output = self.run(columns, feed.device)
            part = _checked(read_answers(output, feed.task, len(rows)))
            size += part.nbytes
            answers |= zip(rows, part, strict=True)
            if size / len(answers) * len(feed.rows) > STORED_BYTES:
                return None
        self._stored = [answers[i] for i in range(len(feed.rows))]
        has_tokens = feed.rows.lengths is not None and self._stored[0].dim() > 1
        self._is_ragged = has_tokens or len({each.shape for each in self._stored}) > 1
        return self._stored


def get_device(model: nn.Module, default: torch.device) -> torch.device:
    """Returns the device of a model's parameters."""
    return next((x.device for x in model.parameters()), default)


def load_teacher(given: Any) -> nn.Module:
    """Returns the module of a teacher.

    Args:
        given: module, graph, or path: a checkpoint of `chop` with or without its suffix, the folder
            of a run that saved a model, or a name that `chop.models.load_model` takes.
    Raises:
        ConfigError: it is none of these.
        CheckpointError: a file cannot be read.
        UnavailableError: a hub name cannot be reached.
    """
    if isinstance(given, MaseGraph | Teacher):
        return given.model
    if isinstance(given, nn.Module):
        return given
    if "model" in getattr(given, "__dict__", {}):
        check_is_module(given, "distill")
    if not isinstance(given, str | Path):
        raise ConfigError(
            f"distill: expected a module, a graph or the path of a model as the teacher, got a "
            f"{type(given).__name__}."
        )
    if (checkpoint := find_checkpoint(given)) is not None:
        return MaseGraph.from_checkpoint(checkpoint).model.eval()
    if (path := Path(given)).suffix in WEIGHT_SUFFIXES:
        problem = "holds weights only" if path.is_file() else "does not exist"
        raise ConfigError(
            f"distill: '{given}' {problem}; expected a module, the folder of a run or of a Hugging "
            "Face model, or in commands file.py:function, which builds the model and loads weights."
        )
    if (name := builtin_model(str(given))) is not None:
        raise ConfigError(
            f"distill: '{name}' is built in and untrained: pass load_trained('{name}') of "
            "chop.train as the teacher."
        )
    return load_model(given)


def get_class_names(model: nn.Module) -> Sequence[str]:
    """Returns the class names in the configuration of a model of transformers; none without."""
    known = getattr(getattr(model, "config", None), "label2id", None) or {}
    return sorted(known, key=known.__getitem__)


def check_class_order(names: Sequence[str], teacher: nn.Module) -> None:
    """Checks that a teacher has its classes in the order of the model that learns from it.

    Args:
        names: class names of that model. If they are not those of the teacher, nothing is checked.
        teacher: the teacher.
    Raises:
        ConfigError: if the order differs.
    """
    own = get_class_names(teacher)
    first, second = ([name.casefold() for name in each] for each in (names, own))
    if first != second and sorted(first) == sorted(second):
        raise ConfigError(
            f"distill: the classes of the teacher are {enumerate_names(own, MAX_LISTED)}, those of "
            f"the model {enumerate_names(names, MAX_LISTED)}; expected one order. Reorder the "
            "outputs of the teacher's last layer, or pass another teacher."
        )


def infer_unlabeled_task(teacher: Teacher, rows: Rows) -> Task:
    """Infers the task of rows without labels from the teacher and the shape of its outputs.

    Raises:
        ConfigError: the shape does not tell classes from numbers.
    """
    (columns,) = rows.spread(2).batches(2, pad_id=padding_token(teacher.model))
    output = teacher.run(columns, get_device(teacher.model, torch.device("cpu")))
    answers = read_answers(output, TASKS["classification"], len(columns[LABELS]))
    if answers.dim() == 3 and continues_texts(teacher.model):
        return TASKS[CAUSAL_LM]
    kinds = {2: "classification", 3: "token-classification", 4: SEGMENTATION}
    if answers.dim() not in kinds or (answers.dim() == 2 and answers.shape[1] < 2):
        raise ConfigError(
            f"distill: the rows have no labels, and outputs of shape {tuple(answers.shape)} are "
            "numbers or logits; pass task='regression' or task='binary'."
        )
    return TASKS[kinds[answers.dim()]]


def answers_as_labels(task: Task, answers: Tensor, mask: Tensor | None) -> Tensor:
    """Returns labels in the task's form for rows without labels.

    Args:
        task: the task.
        answers: the teacher's outputs (B, ...).
        mask: (B, T); tokens with 0 are `IGNORED`.
    """
    if task.name == SEGMENTATION:
        return (answers > 0).long() if answers.dim() == 3 else answers.argmax(1)
    if task.soft_loss is binary_divergence:
        is_pair = task.name == "binary" and answers.shape[1:] == (2,)
        return answers.argmax(-1) if is_pair else (answers > 0).long()
    if not task.is_categorical:
        return answers[:, 0] if answers.shape[1:] == (1,) else answers
    labels = answers.argmax(-1)
    if mask is None or mask.shape != labels.shape:
        return labels
    return labels.masked_fill(mask.to(labels.device) == 0, IGNORED)


def _checked(answers: Tensor) -> Tensor:
    if answers.numel() and not bool(answers.amax() < torch.inf):  # the maximum with NaN is NaN
        raise ConfigError(
            "distill: the teacher's outputs have NaN or infinity; expected a working model."
        )
    return answers


def _padded(rows: list[Tensor], length: int) -> Tensor:
    """Stacks the outputs for texts, each cut or padded to a number of tokens."""
    padded = rows[0].new_zeros(len(rows), length, *rows[0].shape[1:])
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row[:length]
    return padded
