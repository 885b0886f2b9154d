"""Model catalogue: a row with kind and builder for each model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from chop.config import with_checked_arguments
from chop.data import TEXT_DATASETS, DatasetInfo
from chop.data.catalogue import Kind
from chop.errors import ConfigError, did_you_mean
from chop.models.builtin import BUILTIN_MODELS
from chop.models.plain import MLP, TOY_CHANNELS, VGG7, JetTagger, ToyConvNet, ToyNet

if TYPE_CHECKING:
    from torch import nn

Plain = Callable[[DatasetInfo], "nn.Module"]
S = TypeVar("S")


@dataclass(frozen=True)
class ModelInfo:
    """Row of the catalogue.

    Attributes:
        name: name for `get_model`; hyphens and underscores are equivalent.
        kind: input kind: images, texts or feature vectors.
        default_dataset: data set that determines the sizes of a plain model by default.
        plain: builds a plain model for a data set; None for Hugging Face models.
        config: class of the Hugging Face configuration.
        settings: settings that differ from that class's defaults.
        hub: hub name of trained weights; None if there are none.
        image_size: required (channels, height, width); None uses that of the data set.
        input_name: parameter of `forward` for images or vectors.
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
        """True for image models."""
        return self.kind == "vision"

    @property
    def is_nlp_model(self) -> bool:
        """True for text models."""
        return self.kind == "nlp"

    @property
    def is_physical_model(self) -> bool:
        """True for models of feature vectors."""
        return self.kind == "physical"


def _mlp(*hidden: int) -> Plain:
    return lambda info: MLP(_shape(info), (*hidden, info.num_classes))


def _jet_tagger(*hidden: int) -> Plain:
    return lambda info: JetTagger(
        _known(info, info.num_features, "vectors"), info.num_classes, hidden
    )


def _vgg7(info: DatasetInfo) -> nn.Module:
    return VGG7(_known(info, info.image_size, "images of one size"), info.num_classes)


def _toy(info: DatasetInfo) -> nn.Module:
    return ToyNet(_shape(info), info.num_classes)


def _toy_convnet(info: DatasetInfo) -> nn.Module:
    channels, side, _ = _known(info, info.image_size, "images of one size")
    return ToyConvNet(info.num_classes, (channels, *TOY_CHANNELS[1:]), side)


def _shape(info: DatasetInfo) -> tuple[int, ...]:
    """Returns the shape of one image or vector."""
    vector = (info.num_features,) if info.num_features else None
    return _known(info, info.image_size or vector, "images of one size or vectors")


def _known(info: DatasetInfo, size: S | None, wanted: str) -> S:
    if size is None:
        raise ConfigError(f"data set '{info.name}' does not fit the model: it takes {wanted}.")
    return size


def _vision(
    name: str, hub: str, config: str, settings: Mapping[str, Any] | None = None
) -> ModelInfo:
    return ModelInfo(
        name,
        "vision",
        config=config,
        settings=settings or {},
        hub=hub,
        image_size=(3, 224, 224),
        input_name="pixel_values",
    )


def _nlp(name: str, hub: str, config: str, settings: Mapping[str, Any] | None = None) -> ModelInfo:
    return ModelInfo(
        name, "nlp", config=config, settings=settings or {}, hub=hub, input_name="input_ids"
    )


def _sizes(width: int, layers: int, heads: int) -> dict[str, int]:
    return {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}


def _transformer(width: int, layers: int, heads: int) -> dict[str, int]:
    return {**_sizes(width, layers, heads), "intermediate_size": 4 * width}


def _opt(width: int, layers: int, heads: int) -> dict[str, int]:
    own = {"ffn_dim": 4 * width, "word_embed_proj_dim": width}
    return {**_sizes(width, layers, heads), **own}


_ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
_OPT_350M = {"word_embed_proj_dim": 512, "do_layer_norm_before": False}
_TINY, _SMALL = _transformer(192, 12, 3), _transformer(384, 12, 6)
_LARGE = _transformer(1024, 24, 16)
_BASIC = {"layer_type": "basic", "hidden_sizes": [64, 128, 256, 512]}

_ROWS = (
    ModelInfo("toy", "vision", "mnist", _toy),
    ModelInfo("toy-tiny", "vision", "digits", _mlp(4, 4)),
    ModelInfo("toy-convnet", "vision", "cifar10", _toy_convnet),
    ModelInfo("jsc-tiny", "physical", "jsc", _jet_tagger()),
    ModelInfo("jsc-toy", "physical", "jsc", _jet_tagger(8, 8)),
    ModelInfo("jsc-s", "physical", "jsc", _jet_tagger(64, 32, 32, 32)),
    ModelInfo("jsc-m", "physical", "jsc", _jet_tagger(64, 32, 32, 32)),
    ModelInfo("jsc-l", "physical", "jsc", _jet_tagger(32, 64, 192, 192, 16)),
    ModelInfo("mnist", "vision", "mnist", _mlp(256, 100, 100, 100)),
    ModelInfo("vgg7", "vision", "cifar10", _vgg7),
    _vision("resnet18", "microsoft/resnet-18", "ResNetConfig", {"depths": [2, 2, 2, 2], **_BASIC}),
    _vision("resnet34", "microsoft/resnet-34", "ResNetConfig", {"depths": [3, 4, 6, 3], **_BASIC}),
    _vision("resnet50", "microsoft/resnet-50", "ResNetConfig"),
    _vision("mobilenet-v2", "google/mobilenet_v2_1.0_224", "MobileNetV2Config"),
    _vision("vit-tiny-patch16-224", "WinKawaks/vit-tiny-patch16-224", "ViTConfig", _TINY),
    _vision("vit-base-patch16-224", "google/vit-base-patch16-224", "ViTConfig"),
    _vision("deit-tiny-patch16-224", "facebook/deit-tiny-patch16-224", "ViTConfig", _TINY),
    _vision("deit-small-patch16-224", "facebook/deit-small-patch16-224", "ViTConfig", _SMALL),
    _vision("deit-base-patch16-224", "facebook/deit-base-patch16-224", "ViTConfig"),
    _vision("swin-tiny", "microsoft/swin-tiny-patch4-window7-224", "SwinConfig"),
    _nlp("bert-base-uncased", "google-bert/bert-base-uncased", "BertConfig"),
    _nlp("bert-large-uncased", "google-bert/bert-large-uncased", "BertConfig", _LARGE),
    _nlp("prajjwal1/bert-tiny", "prajjwal1/bert-tiny", "BertConfig", _transformer(128, 2, 2)),
    _nlp("distilbert-base-uncased", "distilbert/distilbert-base-uncased", "DistilBertConfig"),
    _nlp("roberta-base", "FacebookAI/roberta-base", "RobertaConfig", _ROBERTA),
    _nlp("opt-125m", "facebook/opt-125m", "OPTConfig"),
    _nlp("opt-350m", "facebook/opt-350m", "OPTConfig", {**_opt(1024, 24, 16), **_OPT_350M}),
    _nlp("opt-1.3b", "facebook/opt-1.3b", "OPTConfig", _opt(2048, 24, 32)),
    _nlp("llama-7b", "huggyllama/llama-7b", "LlamaConfig"),
    *(
        ModelInfo(name, "nlp", model.dataset, input_name="input_ids")
        if model.dataset in TEXT_DATASETS
        else ModelInfo(name, "vision", model.dataset, input_name="pixel_values")
        for name, model in BUILTIN_MODELS.items()
    ),
)


def _plain_name(name: str) -> str:
    return name.lower().replace("_", "-")


MODELS: dict[str, ModelInfo] = {row.name: row for row in _ROWS}
"""Rows by name."""
_ROWS_BY_NAME = {_plain_name(key): row for row in _ROWS for key in (row.name, row.hub) if key}
_ROWS_BY_NAME["vgg7-cifar"] = MODELS["vgg7"]


def add_row(row: ModelInfo) -> None:
    """Adds a user's model.

    Raises:
        ConfigError: if the name is taken.
    """
    if _plain_name(row.name) in _ROWS_BY_NAME:
        raise ConfigError(f"a model '{row.name}' is already in the catalogue: choose another name.")
    MODELS[row.name] = _ROWS_BY_NAME[_plain_name(row.name)] = row


@with_checked_arguments
def get_model_info(name: str) -> ModelInfo:
    """Returns the row of a model by its name or its name on the hub.

    Raises:
        ConfigError: if the name is unknown. The message suggests the nearest name.
    """
    info = find_model_info(name)
    if info is None:
        raise ConfigError(f"unknown model '{name}': {did_you_mean(name, MODELS)}")
    return info


@with_checked_arguments
def find_model_info(name: str) -> ModelInfo | None:
    """Returns the row of a model; None for folders and hub names that are not in the table."""
    return _ROWS_BY_NAME.get(_plain_name(name))
