"""Registration of users' models in the catalogue by MASE's decorators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from torch import nn

from chop.config import convert
from chop.data.catalogue import Kind
from chop.models.catalogue import MODELS, ModelInfo, add_row

Getter = Callable[..., nn.Module]
M = TypeVar("M", bound=type[nn.Module])
G = TypeVar("G", bound=Getter)


class ModelFactory:
    """Registered models by name, in the tables of MASE's interface."""

    _model_info_dict: ClassVar[dict[str, ModelInfo]] = MODELS
    _model_cls_dict: ClassVar[dict[str, type[nn.Module]]] = {}
    _checkpoint_getter_dict: ClassVar[dict[str, Getter]] = {}


def register_mase_model(
    name: str,
    checkpoints: Sequence[str] | None = None,
    model_source: Any = None,
    task_type: Any = "vision",
    **traits: Any,
) -> Callable[[M], M]:
    """Class decorator that adds a row to the catalogue for each checkpoint.

    Args:
        name: name of the model.
        checkpoints: names for `get_model`; `name` by default.
        model_source: ignored; present for compatibility with MASE.
        task_type: `vision`, `nlp` or `physical`; an enumeration member counts by its value.
        traits: ignored; MASE's capability flags.

    Raises:
        ConfigError: if the task type is unknown, or a name is taken.
    """
    kind = convert(getattr(task_type, "value", task_type), Kind, f"{name}: task_type")

    def register(cls: M) -> M:
        for checkpoint in checkpoints or (name,):
            add_row(ModelInfo(checkpoint, kind, input_name="input_ids" if kind == "nlp" else "x"))
            ModelFactory._model_cls_dict[checkpoint] = cls
        return cls

    return register


def register_mase_checkpoint(checkpoint: str) -> Callable[[G], G]:
    """Decorator of the function that builds the model: `(pretrained=..., dataset_info=...)`."""

    def register(getter: G) -> G:
        ModelFactory._checkpoint_getter_dict[checkpoint] = getter
        return getter

    return register
