"""Models and tokenizers by name, with MASE's interface."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from chop.config import with_checked_arguments
from chop.data import DatasetInfo, get_dataset_info
from chop.data import get_tokenizer as find_tokenizer
from chop.data.builtin_names import PREFIX, plain_name
from chop.errors import ConfigError, UnavailableError, did_you_mean
from chop.models.builtin import BUILTIN_MODELS, has_model
from chop.models.catalogue import MODELS, ModelInfo, find_model_info
from chop.models.load import AUTO_CLASSES, load_model
from chop.models.registry import ModelFactory
from chop.models.weights import load_weights

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

TASKS = {
    "cls": {"vision": "image-classification", "nlp": "text-classification"},
    "lm": {"nlp": "text-generation"},
}
TASKS |= {"classification": TASKS["cls"], "language_modeling": TASKS["lm"]}
MASKED = ("BertConfig", "RobertaConfig", "DistilBertConfig")


@with_checked_arguments
def get_model(
    name: str | None = None,
    pretrained: bool = False,
    task: str = "cls",
    dataset_info: DatasetInfo | None = None,
    checkpoint: str | Path | None = None,
    *,
    seed: int = 0,
) -> nn.Module:
    """Returns a model by name, in evaluation mode.

    Args:
        name: a name in `MODELS`, a local Hugging Face folder, or a hub name.
        pretrained: read the weights from the hub or the folder; False draws them from `seed`, which
            needs no network for names in `MODELS`.
        task: `cls`, `lm`, or a task of `chop.models.load_model`.
        dataset_info: data set that determines the number of classes and the sizes of a plain model.
        checkpoint: file of weights, loaded regardless of `pretrained`; or a folder or hub name used
            instead of `name`.
        seed: seed of random weights.

    Raises:
        ConfigError: if the name or task is unknown, the data does not fit the model, or no trained
            weights exist.
        CheckpointError: if the file does not fit the model, or is broken.
        UnavailableError: if the weights are not in the hub cache and the hub cannot be reached.
    """
    if name is None and checkpoint is None:
        raise ConfigError("get_model: expected the name of a model.")
    if name is None or checkpoint is None:
        return _named(str(name or checkpoint), pretrained, task, dataset_info, seed)
    if Path(checkpoint).is_file():
        return load_weights(_named(name, False, task, dataset_info, seed), checkpoint)
    info = find_model_info(name)
    if info is not None and not info.is_nlp_model and info.config is None:
        raise ConfigError(f"checkpoint '{checkpoint}': there is no weight file for '{name}'.")
    return _named(str(checkpoint), pretrained, task, dataset_info, seed)


def _named(
    name: str, pretrained: bool, task: str, dataset_info: DatasetInfo | None, seed: int
) -> nn.Module:
    getter = ModelFactory._checkpoint_getter_dict.get(name)
    if getter is not None:
        return getter(pretrained=pretrained, dataset_info=dataset_info).eval()
    if name in ModelFactory._model_cls_dict:
        raise ConfigError(
            f"'{name}' is registered without a constructor function: decorate one with "
            f"@register_mase_checkpoint('{name}')."
        )
    labels = None if dataset_info is None else dataset_info.num_classes
    info = None if has_model(Path(name)) else find_model_info(plain_name(name))
    if info is None:
        kind = dataset_info.kind if dataset_info else "nlp"
        if kind == "physical":
            known = [row.name for row in MODELS.values() if row.plain is not None]
            raise ConfigError(f"model '{name}' is unknown: {did_you_mean(name, known)}")
        auto = None if labels is None and task == "cls" else _auto_task(task, kind)
        return load_model(name, num_labels=labels, task=auto, pretrained=pretrained, seed=seed)
    if info.config is not None:
        make = _from_hub if pretrained else _from_config
        return make(info, _auto_task(task, info.kind, info.config), labels, seed).eval()
    _check_own(info, pretrained, task, dataset_info)
    if info.plain is None:
        return load_model(f"{PREFIX}{info.name}", num_labels=labels, seed=seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return info.plain(dataset_info or get_dataset_info(str(info.default_dataset))).eval()


def _check_own(info: ModelInfo, pretrained: bool, task: str, data: DatasetInfo | None) -> None:
    """Raises ConfigError if a plain model cannot provide the request."""
    built_in = info.name in BUILTIN_MODELS
    if pretrained:
        trained = (
            f"'{info.name}' is built in and untrained: call chop.train.load_trained('{info.name}')."
        )
        absent = f"no trained weights of '{info.name}' exist: pass pretrained=False."
        raise ConfigError(trained if built_in else absent)
    if task not in TASKS or TASKS[task] is not TASKS["cls"]:
        raise ConfigError(f"'{info.name}' is a classifier, expected the task 'cls', got '{task}'.")
    own = get_dataset_info(str(info.default_dataset))
    if built_in and data and (data.kind, data.image_size) != (own.kind, own.image_size):
        raise ConfigError(
            f"data set '{data.name}' does not fit '{info.name}', which is built for '{own.name}'."
        )


@with_checked_arguments
def get_tokenizer(name: str, checkpoint: str | Path | None = None) -> PreTrainedTokenizerBase:
    """Returns the tokenizer of a model.

    Args:
        name: a name in `MODELS`, a built-in name, a local folder or a hub name.
        checkpoint: folder or hub name to use instead.

    Raises:
        UnavailableError: if it is missing and the hub cannot be reached.
    """
    info = None if has_model(Path(name)) else find_model_info(name)
    return find_tokenizer(checkpoint or (info.hub if info and info.hub else name))


def _auto_task(task: str, kind: str, config: str | None = None) -> str:
    if task in AUTO_CLASSES:
        return task
    if task not in TASKS:
        choices = [*TASKS, *AUTO_CLASSES]
        raise ConfigError(f"unknown task '{task}': {did_you_mean(task, choices)}")
    if kind not in TASKS[task]:
        raise ConfigError(f"task '{task}' does not apply to a {kind} model.")
    is_masked = TASKS[task] is TASKS["lm"] and config in MASKED
    return "fill-mask" if is_masked else TASKS[task][kind]


def _from_hub(info: ModelInfo, task: str, labels: int | None, seed: int) -> nn.Module:
    try:
        return load_model(str(info.hub), num_labels=labels, task=task, seed=seed)
    except UnavailableError as error:
        raise UnavailableError(f"{error} Or draw fresh weights: pretrained=False.") from error


def _from_config(info: ModelInfo, task: str, labels: int | None, seed: int) -> nn.Module:
    import transformers

    sizes = {} if labels is None else {"num_labels": labels}
    config = getattr(transformers, str(info.config))(**info.settings, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = getattr(transformers, AUTO_CLASSES[task]).from_config(config)
        return model
