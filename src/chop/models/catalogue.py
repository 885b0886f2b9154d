"""The models that users name: what each is, and how it is built. A model is one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from chop.data import DatasetInfo
from chop.data.catalogue import Kind
from chop.errors import ConfigError, UnavailableError, did_you_mean
from chop.models.builtin import BUILTIN_MODELS
from chop.models.load import AUTO_CLASSES, load_model
from chop.models.plain import MLP, VGG7, JetTagger

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

Plain = Callable[[DatasetInfo], "nn.Module"]


@dataclass(frozen=True)
class ModelInfo:
    """What the rest of a flow has to know of a model.

    Attributes:
        name: as `get_model` takes it; hyphens and underscores are the same.
        kind: pictures, texts, or plain feature vectors.
        default_dataset: the data set that tells the sizes of a plain model when none is given.
        plain: builds a plain model for a data set; None for those of Hugging Face.
        config: class of the Hugging Face configuration.
        settings: what differs from that class's defaults.
        hub: where trained weights are; None if there are none.
        image_size: (channels, height, width) that it wants; None takes that of the data set.
        input_name: the parameter of `forward` that takes pictures or vectors.
    """

    name: str
    kind: Kind
    default_dataset: str | None = None
    plain: Plain | None = None
    config: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    hub: str | None = None
    image_size: tuple[int, int, int] | None = None
    input_name: str = "x"

    @property
    def is_vision_model(self) -> bool:
        """True for models of pictures."""
        return self.kind == "vision"

    @property
    def is_nlp_model(self) -> bool:
        """True for models of texts."""
        return self.kind == "nlp"

    @property
    def is_physical_model(self) -> bool:
        """True for models of plain feature vectors."""
        return self.kind == "physical"


def _mlp(*hidden: int) -> Plain:
    def build(info: DatasetInfo) -> nn.Module:
        shape = info.image_size or (info.num_features or 0,)
        return MLP(shape, (*hidden, info.num_classes))

    return build


def _jet_tagger(info: DatasetInfo) -> nn.Module:
    return JetTagger(info.num_features or 16, info.num_classes)


def _vgg7(info: DatasetInfo) -> nn.Module:
    return VGG7(info.image_size or (3, 32, 32), info.num_classes)


def _image(name: str, hub: str, config: str, **settings: Any) -> ModelInfo:
    size = (3, 224, 224)
    return ModelInfo(
        name, "vision", None, None, config, settings, hub, size, input_name="pixel_values"
    )


def _text(name: str, hub: str, config: str, **settings: Any) -> ModelInfo:
    return ModelInfo(name, "nlp", None, None, config, settings, hub, input_name="input_ids")


def _transformer(width: int, layers: int, heads: int, inner: int | None = None) -> dict[str, int]:
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner or 4 * width,
    }


def _opt(width: int, layers: int, heads: int) -> dict[str, int]:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {**sizes, "ffn_dim": 4 * width, "word_embed_proj_dim": width}


_ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
_OPT_350M = {"word_embed_proj_dim": 512, "do_layer_norm_before": False}
_BASIC = {"layer_type": "basic", "hidden_sizes": [64, 128, 256, 512]}

_ROWS = (
    ModelInfo("toy", "vision", "mnist", _mlp(100, 100)),
    ModelInfo("toy-tiny", "vision", "digits", _mlp(4, 4)),
    ModelInfo("jsc-tiny", "physical", "jsc", _jet_tagger),
    ModelInfo("vgg7", "vision", "cifar10", _vgg7),
    _image("resnet18", "microsoft/resnet-18", "ResNetConfig", depths=[2, 2, 2, 2], **_BASIC),
    _image("resnet34", "microsoft/resnet-34", "ResNetConfig", depths=[3, 4, 6, 3], **_BASIC),
    _image("resnet50", "microsoft/resnet-50", "ResNetConfig"),
    _image("mobilenet-v2", "google/mobilenet_v2_1.0_224", "MobileNetV2Config"),
    _image(
        "vit-tiny-patch16-224",
        "WinKawaks/vit-tiny-patch16-224",
        "ViTConfig",
        **_transformer(192, 12, 3),
    ),
    _image("vit-base-patch16-224", "google/vit-base-patch16-224", "ViTConfig"),
    _image(
        "deit-tiny-patch16-224",
        "facebook/deit-tiny-patch16-224",
        "ViTConfig",
        **_transformer(192, 12, 3),
    ),
    _image(
        "deit-small-patch16-224",
        "facebook/deit-small-patch16-224",
        "ViTConfig",
        **_transformer(384, 12, 6),
    ),
    _image("deit-base-patch16-224", "facebook/deit-base-patch16-224", "ViTConfig"),
    _image("swin-tiny", "microsoft/swin-tiny-patch4-window7-224", "SwinConfig"),
    _text("bert-base-uncased", "google-bert/bert-base-uncased", "BertConfig"),
    _text(
        "bert-large-uncased",
        "google-bert/bert-large-uncased",
        "BertConfig",
        **_transformer(1024, 24, 16),
    ),
    _text(
        "prajjwal1/bert-tiny",
        "prajjwal1/bert-tiny",
        "BertConfig",
        **_transformer(128, 2, 2),
    ),
    _text("distilbert-base-uncased", "distilbert/distilbert-base-uncased", "DistilBertConfig"),
    _text("roberta-base", "FacebookAI/roberta-base", "RobertaConfig", **_ROBERTA),
    _text("opt-125m", "facebook/opt-125m", "OPTConfig"),
    _text("opt-350m", "facebook/opt-350m", "OPTConfig", **{**_opt(1024, 24, 16), **_OPT_350M}),
    _text("opt-1.3b", "facebook/opt-1.3b", "OPTConfig", **_opt(2048, 24, 32)),
    _text("llama-7b", "huggyllama/llama-7b", "LlamaConfig"),
    *(
        ModelInfo(name, "nlp", model.dataset, input_name="input_ids")
        if model.dataset == "reviews"
        else ModelInfo(name, "vision", model.dataset, input_name="pixel_values")
        for name, model in BUILTIN_MODELS.items()
    ),
)


def _plain_name(name: str) -> str:
    return name.lower().replace("_", "-")


MODELS: dict[str, ModelInfo] = {row.name: row for row in _ROWS}
"""Rows by name."""
_FOUND_BY = {_plain_name(key): row for row in _ROWS for key in (row.name, row.hub) if key}
TASKS = {
    "cls": {"vision": "image-classification", "nlp": "text-classification"},
    "lm": {"nlp": "text-generation"},
}
TASKS |= {"classification": TASKS["cls"], "language_modeling": TASKS["lm"]}
MASKED = ("BertConfig", "RobertaConfig", "DistilBertConfig")


def get_model_info(name: str) -> ModelInfo:
    """The row of a model, by its name or its name on the hub.

    Raises:
        ConfigError: the name is not in the table; the message names the nearest.
    """
    if _plain_name(name) not in _FOUND_BY:
        raise ConfigError(f"unknown model '{name}': {did_you_mean(name, MODELS)}")
    return _FOUND_BY[_plain_name(name)]


def get_model(
    checkpoint: str,
    pretrained: bool = False,
    task: str = "cls",
    dataset_info: DatasetInfo | None = None,
    *,
    seed: int = 0,
) -> nn.Module:
    """A model by name, in evaluation mode.

    Args:
        checkpoint: a name of `MODELS`, a local Hugging Face folder, or a name on the hub.
        pretrained: reads the weights from the hub or the folder; False draws them from `seed`
            and needs no network for the names of `MODELS`.
        task: `cls`, `lm`, or a task of `chop.models.load_model`.
        dataset_info: the data set, for the number of classes and the sizes of a plain model.
        seed: of the drawn weights.

    Raises:
        ConfigError: an unknown name or task, or a model without trained weights is asked for them.
        UnavailableError: the weights are not in the hub's cache and the hub cannot be reached.
    """
    if checkpoint in BUILTIN_MODELS and pretrained:
        raise ConfigError(
            f"'{checkpoint}' is built in and untrained: chop.train.load_trained('{checkpoint}')."
        )
    labels = None if dataset_info is None else dataset_info.num_classes
    info = _FOUND_BY.get(_plain_name(checkpoint))
    if info is None or (info.plain is None and info.config is None):
        kind = info.kind if info else dataset_info.kind if dataset_info else "nlp"
        auto = None if labels is None and task == "cls" else _auto_task(task, kind)
        return load_model(
            checkpoint, num_labels=labels, task=auto, pretrained=pretrained, seed=seed
        )
    if pretrained and info.hub is None:
        raise ConfigError(f"no trained weights of '{info.name}' exist: pass pretrained=False.")
    auto = None if info.plain else _auto_task(task, info.kind, info.config)
    if pretrained:
        return _from_hub(str(info.hub), str(auto), labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if info.plain is None:
            return _from_config(info, str(auto), labels).eval()
        return info.plain(dataset_info or _default_dataset(info)).eval()


def get_tokenizer(name: str, checkpoint: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a model.

    Args:
        name: a name of `MODELS`, a built-in one, a local folder or a name on the hub.
        checkpoint: a folder or hub name to take instead.

    Raises:
        UnavailableError: it is not there and the hub cannot be reached.
    """
    from chop.data import get_tokenizer

    info = _FOUND_BY.get(_plain_name(name))
    return get_tokenizer(checkpoint or (info.hub if info and info.hub else name))


def _auto_task(task: str, kind: str, config: str | None = None) -> str:
    if task in AUTO_CLASSES:
        return task
    if task not in TASKS:
        choices = [*TASKS, *AUTO_CLASSES]
        raise ConfigError(f"unknown task '{task}': {did_you_mean(task, choices)}")
    if kind not in TASKS[task]:
        raise ConfigError(f"task '{task}' is not one of a {kind} model.")
    is_masked = TASKS[task] is TASKS["lm"] and config in MASKED
    return "fill-mask" if is_masked else TASKS[task][kind]


def _default_dataset(info: ModelInfo) -> DatasetInfo:
    from chop.data import get_dataset_info

    return get_dataset_info(str(info.default_dataset))


def _from_hub(hub: str, task: str, labels: int | None) -> nn.Module:
    try:
        return load_model(hub, num_labels=labels, task=task)
    except UnavailableError as error:
        raise UnavailableError(f"{error} Or draw fresh weights: pretrained=False.") from error


def _from_config(info: ModelInfo, task: str, labels: int | None) -> nn.Module:
    import transformers

    sizes = {} if labels is None else {"num_labels": labels}
    config = getattr(transformers, str(info.config))(**info.settings, **sizes)
    return getattr(transformers, AUTO_CLASSES[task]).from_config(config)
