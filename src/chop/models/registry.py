"""Models that users add to the catalogue, by MASE's decorators."""

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
    """What is registered, by name, in the tables that MASE's users look into."""

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
    """A class decorator: the catalogue gets a row for each of the checkpoints.

    Args:
        name: of the model.
        checkpoints: the names that `get_model` is to know; default, `name`.
        model_source: not used: it makes no difference here where a class is from.
        task_type: `vision`, `nlp` or `physical`; a member of an enumeration counts by its value.
        traits: not used: MASE's flags of what a model can do.

    Raises:
        ConfigError: another kind of task, or a name that is taken.
    """
    kind = convert(getattr(task_type, "value", task_type), Kind, f"{name}: task_type")

    def register(cls: M) -> M:
        for checkpoint in checkpoints or (name,):
            add_row(ModelInfo(checkpoint, kind, input_name="input_ids" if kind == "nlp" else "x"))
            ModelFactory._model_cls_dict[checkpoint] = cls
        return cls

    return register


def register_mase_checkpoint(checkpoint: str) -> Callable[[G], G]:
    """A decorator of the function that makes the model: `(pretrained=..., dataset_info=...)`."""

    def register(getter: G) -> G:
        ModelFactory._checkpoint_getter_dict[checkpoint] = getter
        return getter

    return register
