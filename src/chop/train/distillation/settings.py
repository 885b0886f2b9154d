"""Settings of knowledge distillation, and their records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from torch import nn

from chop.captured.wrappers import check_is_module
from chop.config import Range, check_fields, parse, with_checked_init
from chop.errors import ConfigError, describe
from chop.ir.graph import MaseGraph
from chop.train.distillation.soft_losses import soft_losses, squared_difference
from chop.train.distillation.teacher import Teacher
from chop.train.task import Task

HIDDEN = {"cosine": "cosine distance", "mse": "relative squared error"}
"""Comparisons of layers in words."""
ALPHA = 0.9
"""Default weight of the teacher if there are labels."""
TEMPERATURE = 2.0
"""Default temperature for classes; language models have 1."""
LAYERS: Literal["mse"] = "mse"
"""Default comparison of layers of a compressed classifier and its float model."""
LAYERS_WEIGHT = 5.0
"""Default weight of a comparison of layers."""


@with_checked_init
@dataclass(frozen=True)
class Distillation:
    """Settings of knowledge distillation, for `chop.train.fit(distill=...)`.

    Attributes:
        alpha: weight of the teacher, 0 to 1; the task's loss has the rest. Default: 0.9, and 1 for
            rows without labels or a task without a loss.
        temperature: T, by which logits are divided before the softmax. Larger values give the
            unlikely classes more weight. Only for classes. Default: 2, and 1 for language models.
        hidden: comparison of the outputs of layers with equal names: `cosine` distance, `mse`, the
            mean squared difference relative to the mean square of the teacher's values, or `none`.
            Default: none. Commands that compress a classifier and have no other teacher than its
            float model use mse.
        hidden_weight: weight of that comparison, which is added to the loss. Default: 5. It is
            refused where layers are not compared.
        teacher: module, graph, or path of a checkpoint or model folder. It is used in evaluation
            mode and never changed. Jobs use the float model by default.
        matched: path of a module of the model -> its path in the teacher, for layers that `hidden`
            compares under different names, see `chop.pruning.decoder.prune.PrunedDecoder`.
    """

    alpha: Annotated[float | None, Range(0, 1)] = None
    temperature: Annotated[float | None, Range(above=0, most=1000)] = None
    hidden: Literal["cosine", "mse", "none"] | None = None
    hidden_weight: Annotated[float | None, Range(above=0, most=1e6)] = None
    teacher: Any = field(default=None, repr=False)
    matched: Mapping[str, str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_fields(self, "Distillation")

    @classmethod
    def read(cls, given: Any, teacher: Any = None) -> Self | None:
        """Reads settings in any form, and loads the teacher; None if there is no distillation.

        Args:
            given: `Distillation`, a mapping of its fields, a teacher, True for the defaults, or
                None or False.
            teacher: the teacher, if `given` has none.
        Raises:
            ConfigError: a field is unknown or out of range, or there is no teacher.
        """
        if given is None or given is False:
            return None
        holds_model = "model" in getattr(given, "__dict__", {})
        if holds_model or isinstance(given, nn.Module | MaseGraph | Teacher | str | Path):
            given = {"teacher": given}
        if isinstance(given, type):
            check_is_module(given, "distill")
        is_known = isinstance(given, Mapping | Distillation | bool)
        if not is_known:
            own = " True," * (teacher is not None)
            raise ConfigError(
                f"distill: expected a teacher (a module, a graph or a path),{own} or a mapping of "
                f"settings, got {describe(given)}."
            )
        settings: Self = parse(cls, {} if given is True else given, "distill")
        chosen = teacher if settings.teacher is None else settings.teacher
        if chosen is None:
            raise ConfigError(
                "distill: expected a teacher, such as the float model: distill=model, or "
                "distill={'teacher': model, 'temperature': 2}."
            )
        return replace(settings, teacher=Teacher.of(chosen))

    def resolve(
        self, task: Task, *, has_labels: bool = True, compares_layers: bool = False
    ) -> Self:
        """Returns the settings with the defaults of a task.

        Args:
            task: the task.
            has_labels: false if the rows have none.
            compares_layers: true if layers of classifiers are compared by default.
        Raises:
            ConfigError: a setting does not apply to the task, or the task has no comparison with a
                teacher.
        """
        has_loss = has_labels and task.can_train
        if not has_loss:
            self.check_needs_no_labels()
        alpha = (ALPHA if has_loss else 1.0) if self.alpha is None else float(self.alpha)
        has_classes = any(loss is not squared_difference for loss in soft_losses(task).values())
        if not has_classes and self.temperature not in (None, 1):
            raise ConfigError(
                f"distill: temperature {self.temperature:g} applies to classes, and task "
                f"'{task.name}' predicts numbers; leave temperature out."
            )
        is_classifier = has_classes and task.labels_from is None
        usual = TEMPERATURE if is_classifier else 1.0
        temperature = usual if self.temperature is None else float(self.temperature)
        hidden = self.hidden
        if hidden is None:
            hidden = LAYERS if is_classifier and compares_layers else "none"
        if hidden == "none" and self.hidden_weight is not None:
            raise ConfigError(
                f"distill: hidden_weight {self.hidden_weight:g} applies to a comparison of layers, "
                "which is off here; leave hidden_weight out, or pass hidden 'mse' or 'cosine'."
            )
        weight = LAYERS_WEIGHT if self.hidden_weight is None else float(self.hidden_weight)
        own = replace(self, alpha=alpha, temperature=temperature, hidden=hidden)
        return own if hidden == "none" else replace(own, hidden_weight=weight)

    def check_needs_no_labels(self) -> None:
        """Raises ConfigError if labels or the task's loss have a part of the loss."""
        if self.alpha not in (None, 1):
            raise ConfigError(
                f"distill: alpha {self.alpha:g} gives the labels a part of the loss, and the rows "
                "have no labels or the task no loss; expected alpha 1."
            )

    def record(self, task: Task, *, compares_layers: bool = False) -> dict[str, Any]:
        """Returns the settings with the defaults of a task as plain JSON, without the teacher.

        Args:
            task: the task.
            compares_layers: see `resolve`.
        """
        own = self.resolve(task, compares_layers=compares_layers)
        hidden = {"hidden": own.hidden, "hidden_weight": own.hidden_weight}
        return {
            "alpha": own.alpha,
            "temperature": own.temperature,
            **(hidden if own.hidden != "none" else {}),
        }


def with_teacher(training: Mapping[str, Any], teacher: Any) -> dict[str, Any]:
    """Returns arguments of `chop.train.fit` in which `distill` has a teacher.

    Args:
        training: arguments, in which `distill` may have settings in any form.
        teacher: the teacher, if the settings have none.
    """
    settings = Distillation.read(training.get("distill"), teacher)
    own = {name: value for name, value in training.items() if name != "distill"}
    return own if settings is None else {**own, "distill": settings}


def describe_distillation(record: Mapping[str, Any], teacher: str = "the float model") -> str:
    """Describes recorded settings in a sentence, see `Distillation.record`."""
    alpha = record["alpha"]
    parts = [f"{1 - alpha:g} of the task's loss"] if alpha < 1 else []
    parts += [f"{alpha:g} of the difference from its outputs"] if alpha > 0 else []
    temperature = record["temperature"]
    heat = f" at temperature {temperature:g}" if temperature != 1 and alpha > 0 else ""
    hidden = HIDDEN.get(record.get("hidden", ""))
    layers = f", plus {record['hidden_weight']:g} of the {hidden} of layers" if hidden else ""
    return f"Fine-tuned against {teacher} (distillation): {' and '.join(parts)}{heat}{layers}."
