"""Multi-output models: outputs with their own labels, trained and evaluated together.

Labels and answers of a row are each stored as one vector, so rows are drawn, shuffled and compared
like those of any task. `Layout` holds the position of each output in these vectors.

Shapes: B rows, D label numbers per row, W answer numbers per row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from chop.base.nested import tree_parts
from chop.base.notices import assume
from chop.config import convert
from chop.errors import ConfigError
from chop.train.metric import Metric
from chop.train.task import TASKS, Labels, Task, check_task_name

MULTIOUTPUT = "multioutput"
"""Name of the task whose outputs take their tasks from the labels."""
MEAN, WORST = "mean_score", "worst_score"
"""Metrics over all outputs: the mean score and the lowest score."""
OUTPUT = "label of {}"
"""Name of the label column of an output. No parameter can have this name."""
POSITIONS = "output_{}"
"""Name of an unnamed output, by its position."""


@dataclass(frozen=True)
class LabelPart:
    """Labels of one output within the label vector of a row.

    Attributes:
        name: name of the output.
        shape: shape of the labels of a row.
        is_whole: labels are whole numbers, such as classes.
    """

    name: str
    shape: tuple[int, ...]
    is_whole: bool

    @property
    def size(self) -> int:
        """Number of label values per row."""
        return math.prod(self.shape)


def join_labels(columns: Mapping[str, Labels]) -> tuple[Tensor, tuple[LabelPart, ...]]:
    """Joins the labels of several outputs into float64 (B, D), which represents classes exactly.

    Args:
        columns: (B, ...) by output.
    Raises:
        ConfigError: if lengths differ between rows or between outputs.
    """
    tensors = {}
    for name, column in columns.items():
        if not isinstance(column, Tensor):
            raise ConfigError(
                f"labels of '{name}': got rows of different lengths, expected one length."
            )
        tensors[name] = column
    if len({len(column) for column in tensors.values()}) > 1:
        listed = ", ".join(f"{name} {len(column)}" for name, column in tensors.items())
        raise ConfigError(f"expected labels of equally many rows per output, got {listed}.")
    parts = tuple(
        LabelPart(name, tuple(column.shape[1:]), not column.is_floating_point())
        for name, column in tensors.items()
    )
    flat = [column.reshape(len(column), -1).double() for column in tensors.values()]
    return torch.cat(flat, 1), parts


def split_labels(labels: Tensor, parts: Sequence[LabelPart]) -> dict[str, Tensor]:
    """Splits labels (B, D) by output into their original shapes and kinds."""
    result = {}
    for part, piece in zip(parts, labels.split([part.size for part in parts], 1), strict=True):
        kind = torch.int64 if part.is_whole else torch.float32
        result[part.name] = piece.reshape(len(labels), *part.shape).to(kind)
    return result


def find_outputs_task(named: str | Mapping[str, str | Task]) -> Task:
    """Returns the multi-output task for the given tasks by output.

    Args:
        named: task by output; or a text, `kind=classification,age=regression`.
    Raises:
        ConfigError: if a task is unknown, or fewer than two outputs are named.
    """
    if isinstance(named, str):
        pairs = [part.partition("=") for part in named.split(",")]
        if any(not name.strip() or not task.strip() for name, _, task in pairs):
            raise ConfigError(f"task '{named}': expected OUTPUT=TASK,OUTPUT=TASK.")
        named = {name.strip(): task.strip() for name, _, task in pairs}
    parts = {}
    for name, task in named.items():
        if isinstance(task, str):
            check_task_name(task, f"unknown task of '{name}'")
            task = TASKS[task]
        task = convert(task, Task, f"task of '{name}'")
        if task.labels_from is not None or task.parts or not task.metric.higher_is_better:
            raise ConfigError(f"task of '{name}': '{task.name}' is for models with one output.")
        parts[str(name)] = task
    if len(parts) < 2:
        raise ConfigError(
            f"task: expected several outputs, got {[*parts]}; for one output pass only the task."
        )
    return outputs_task(parts)


def outputs_task(tasks: Mapping[str, Task]) -> Task:
    """Builds a multi-output task, which takes its shapes from a model (`Task.bind`).

    Args:
        tasks: by output; {} infers them from the labels.
    """
    listed = ",".join(f"{output}={task.name}" for output, task in tasks.items())
    name = listed or MULTIOUTPUT
    metrics = _metrics(tasks, None)
    return Task(
        name,
        metrics[MEAN],
        _unbound,
        parts=dict(tasks),
        bind=_bind,
        metrics=metrics,
        compare=_pair,
        summary="several outputs, each with its own task",
    )


def _unbound(answers: Tensor, labels: Tensor) -> Tensor:
    raise AssertionError("a multi-output task must be bound to a model before use")


def _pair(answers: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return answers, labels


@dataclass(frozen=True)
class Layout:
    """Positions of outputs in the answer and label vectors of a row.

    Attributes:
        tasks: by output.
        labels: parts of the labels, in the same order.
        paths: paths of the outputs in the model's result.
        shapes: shapes of the answers to a row.
    """

    tasks: Mapping[str, Task]
    labels: tuple[LabelPart, ...]
    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def read(self, output: Any, rows: int) -> Tensor:
        """Extracts answers (B, W) from a model's output."""
        outputs = _leaves(output, rows)
        missing = [path for path in self.paths if path not in outputs]
        if missing:
            raise ConfigError(f"expected the outputs {missing} of the model, got {[*outputs]}.")
        return torch.cat([outputs[path].reshape(rows, -1) for path in self.paths], 1)

    def names_among(self, output: Any, rows: int, tensors: Mapping[str, Tensor]) -> list[str]:
        """Returns the names of the tensors that are outputs, in the order of the outputs."""
        outputs, names = _leaves(output, rows), {id(x): name for name, x in tensors.items()}
        return [names[id(outputs[path])] for path in self.paths]

    def pairs(self, answers: Tensor, labels: Tensor) -> Iterator[tuple[str, Task, Tensor, Tensor]]:
        """Yields name, task, answers and labels of each output, in its task's form."""
        given = split_labels(labels, self.labels)
        sizes = [math.prod(shape) for shape in self.shapes]
        pieces = answers.split(sizes, 1)
        for (name, task), piece, shape in zip(self.tasks.items(), pieces, self.shapes, strict=True):
            yield name, task, *task.compare(piece.reshape(len(piece), *shape), given[name])

    def loss(self, answers: Tensor, labels: Tensor) -> Tensor:
        """Returns the sum of the losses of all outputs."""
        losses = [task.loss(x, y) for _, task, x, y in self.pairs(answers, labels)]
        return torch.stack(losses).sum()

    def scores(self, answers: Tensor, labels: Tensor) -> dict[str, float]:
        """Returns the metric of each output by name."""
        return {
            f"{_plain(name)}_{task.metric.name}": task.metric.score(*task.metric.read(x, y))
            for name, task, x, y in self.pairs(answers, labels)
        }

    def split(self, labels: Tensor) -> dict[str, Tensor]:
        """Splits labels by output."""
        return split_labels(labels, self.labels)

    def constants(self, labels: Tensor) -> dict[str, float]:
        """Returns the score of a constant answer for each output, with the names of `scores`."""
        own = {name: task.metric for name, task in self.tasks.items()}
        names = [f"{_plain(name)}_{metric.name}" for name, metric in own.items()]
        scores = zip(names, _constants(self, labels, own), strict=True)
        return {name: value for name, value in scores if value is not None}

    def given(self, labels: Tensor) -> Any:
        """Returns labels in their original form: a mapping, or a tuple for unnamed outputs."""
        labels_by_name = self.split(labels)
        is_tuple = list(labels_by_name) == [POSITIONS.format(i) for i in range(len(labels_by_name))]
        return tuple(labels_by_name.values()) if is_tuple else labels_by_name


def _plain(name: str) -> str:
    return "".join(x if x.isalnum() or x in "_-" else "_" for x in name)


def _metrics(tasks: Mapping[str, Task], layout: Any) -> dict[str, Metric]:
    """Builds the metrics over all outputs and the metrics of single outputs.

    Args:
        tasks: by output.
        layout: of a bound task; None builds named metrics that cannot be computed yet.
    """
    own = [task.metric for task in tasks.values()]
    are_shares = bool(own) and all(metric.is_share for metric in own)
    metrics = {
        name: Metric(
            name,
            partial(_over_all, layout, how),
            is_share=are_shares,
            parts=None if layout is None else layout.scores,
            constant=partial(_constant, layout, how),
        )
        for name, how in ((MEAN, _mean), (WORST, _least))
    }
    for output, task in tasks.items():
        for name, metric in task.metrics.items():
            metrics[f"{_plain(output)}_{name}"] = replace(
                metric,
                name=f"{_plain(output)}_{name}",
                score=partial(_one_score, layout, output, metric),
                predict=_answers,
                expect=lambda predictions, labels: labels,
                parts=None if layout is None else layout.scores,
                constant=partial(_constant_of_one, layout, output, metric),
            )
    return metrics


def _answers(answers: Tensor, labels: Tensor) -> Tensor:
    return answers


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _least(values: Sequence[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else min(values)


def _over_all(
    layout: Layout, how: Callable[[Sequence[float]], float], answers: Tensor, labels: Tensor
) -> float:
    return how([*layout.scores(answers, labels).values()])


def _one_score(
    layout: Layout, output: str, metric: Metric, answers: Tensor, labels: Tensor
) -> float:
    pairs = {name: (x, y) for name, _, x, y in layout.pairs(answers, labels)}
    return metric.score(*metric.read(*pairs[output]))


def _constants(layout: Layout, labels: Tensor, metrics: Mapping[str, Metric]) -> list[float | None]:
    """Returns the score of a constant answer for some outputs; None if unknown."""
    from chop.train.intervals import constant_score

    zeros = labels.new_zeros(len(labels), sum(map(math.prod, layout.shapes)))
    return [
        constant_score(metrics[name], metrics[name].read(x.float(), y)[1])
        for name, _, x, y in layout.pairs(zeros, labels)
        if name in metrics
    ]


def _constant(
    layout: Layout, how: Callable[[Sequence[float]], float], labels: Tensor
) -> float | None:
    own = {name: task.metric for name, task in layout.tasks.items()}
    values = [value for value in _constants(layout, labels, own) if value is not None]
    return how(values) if len(values) == len(own) else None


def _constant_of_one(layout: Layout, output: str, metric: Metric, labels: Tensor) -> float | None:
    return _constants(layout, labels, {output: metric})[0]


def _bind(task: Task, output: Any, labels: Tensor, parts: Sequence[LabelPart]) -> Task:
    """Binds a task to the output shapes of a model.

    Args:
        task: made by `outputs_task`.
        output: the model's output for some rows.
        labels: (B, D) of these rows.
        parts: parts of the labels.
    Raises:
        ConfigError: if labels and outputs do not match.
    """
    names = [part.name for part in parts]
    if {*names} != task.parts.keys():
        raise ConfigError(
            f"task '{task.name}': got labels of {', '.join(names)}: expected one for each output."
        )
    outputs = _leaves(output, len(labels))
    paths = _paths(names, outputs)
    tasks = {name: task.parts[name] for name in names}
    shapes = tuple(tuple(outputs[path].shape[1:]) for path in paths)
    layout = Layout(tasks, tuple(parts), paths, shapes)
    given = split_labels(labels, parts)
    for name, path in zip(names, paths, strict=True):
        with _about(name):
            tasks[name].check(outputs[path], given[name])
            tasks[name].compare(outputs[path], given[name])
    own = [f"{_plain(name)}_{each.metric.name}" for name, each in tasks.items()]
    unlabeled = [path for path in outputs if path not in paths]
    rest = f" Outputs without labels do not count: {', '.join(unlabeled)}." if unlabeled else ""
    listed = ", ".join(
        f"{name} ({each.name}, output '{path}')"
        for (name, each), path in zip(tasks.items(), paths, strict=True)
    )
    metrics = _metrics(tasks, layout)
    assume(
        f"Several outputs: {listed}. The loss is the sum of their losses, {MEAN} the mean of "
        f"{' and '.join(own)}; --metric {WORST} uses the lowest, --metric {own[0]} only that "
        f"output.{rest}"
    )
    return replace(
        task,
        metric=metrics.get(task.metric.name, task.metric),
        loss=layout.loss,
        bind=None,
        layout=layout,
        read=layout.read,
        metrics=metrics,
    )


@contextmanager
def _about(name: str) -> Iterator[None]:
    """Adds the output's name to an error of its task."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"output '{name}': {error}") from error


def _leaves(output: Any, rows: int) -> dict[str, Tensor]:
    """Returns tensors with numbers per row by path, `heads.kind` or `1`."""

    def visit(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Tensor]]:
        if isinstance(value, Tensor):
            if value.is_floating_point() and value.dim() > 0 and len(value) == rows:
                yield path, value
            return
        with suppress(AttributeError):  # a named tuple
            value = value._asdict()
        parts = vars(value) if isinstance(value, SimpleNamespace) else tree_parts(value)
        for key, part in (parts or {}).items():
            yield from visit(part, (*path, str(key)))

    return {".".join(path): x for path, x in visit(output, ())}


def _paths(names: Sequence[str], outputs: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Returns the path of each output, matched by name, or by position if no name matches."""
    by_name = [
        [path for path in outputs if name in (path, path.rpartition(".")[2])] for name in names
    ]
    if all(len(paths) == 1 for paths in by_name):
        return tuple(path for (path,) in by_name)
    are_positions = all(path.rpartition(".")[2].isdigit() for path in outputs)
    unnamed = all(name == POSITIONS.format(i) for i, name in enumerate(names))
    if len(outputs) == len(names) and not any(by_name) and (are_positions or unnamed):
        return tuple(outputs)
    if list(outputs) == [""]:
        raise ConfigError(
            f"labels of {len(names)} outputs ({', '.join(names)}), but the model returns one "
            f"tensor {tuple(outputs[''].shape)}; pass one array of labels, or use a model that "
            "returns a dictionary with these names."
        )
    raise ConfigError(
        f"labels of the outputs {', '.join(names)}, but the model returns "
        f"{', '.join(outputs) or 'no tensor with numbers per row'}; name the labels like the "
        "outputs, or pass a label for each output in their order."
    )
