"""Example inputs of Hugging Face models, derived from the configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class InputSizes:
    """Settings of the input factories.

    Args:
        model: the model.
        config: its configuration.
        batch: batch size.
        length: requested sequence length.
    """

    model: nn.Module
    config: Any
    batch: int
    length: int

    def find(self, *names: str, default: Any = None) -> Any:
        """Returns the first of these settings in the configuration or its nested configurations."""
        for config in _nested(self.config):
            for name in names:
                value = getattr(config, name, None)
                if value is not None and not isinstance(value, str):
                    return value
        return default

    @property
    def task(self) -> str:
        """Suffix of the class name that determines the labels, such as `SequenceClassification`."""
        return type(self.model).__name__.partition("For")[2]


def _nested(config: Any) -> list[Any]:
    inner = [value for value in vars(config).values() if hasattr(value, "to_dict")]
    return [config, *(deeper for value in inner for deeper in _nested(value))]


def default_names(model: nn.Module) -> list[str]:
    """Returns the inputs that a Hugging Face model needs for a forward pass, in signature order."""
    parameters = inspect.signature(model.forward).parameters
    config: Any = model.config
    wanted = {getattr(model, "main_input_name", "input_ids")}
    wanted |= {name for name, p in parameters.items() if p.default is p.empty}
    if "input_ids" in wanted:
        wanted |= {"attention_mask"}
    if getattr(config, "is_encoder_decoder", False) or "decoder_input_ids" in wanted:
        wanted |= {"decoder_input_ids"}
    if _is_dual_encoder(config):
        wanted |= {"input_ids", "attention_mask", "pixel_values", "input_features"}
    return [
        name
        for name, parameter in parameters.items()
        if name in wanted and parameter.kind is not parameter.VAR_KEYWORD
    ]


def _is_dual_encoder(config: Any) -> bool:
    """Returns whether a model like CLIP embeds both sides of a pair.

    Other multimodal models accept text without the other side.
    """
    two_sides = hasattr(config, "text_config") and (
        hasattr(config, "vision_config") or hasattr(config, "audio_config")
    )
    return two_sides and hasattr(config, "projection_dim")


# --- text ---------------------------------------------------------------------------------------


def _vocabulary(sizes: InputSizes) -> int:
    embeddings: Any = getattr(sizes.model, "get_input_embeddings", None)
    size = sizes.find("vocab_size", default=None)
    if isinstance(size, int):
        return size
    try:
        return int(embeddings().num_embeddings)
    except (AttributeError, NotImplementedError):
        return 64


def _token_ids(sizes: InputSizes) -> Tensor:
    vocabulary = _vocabulary(sizes)
    ids = torch.randint(min(5, vocabulary // 2), vocabulary, _text_shape(sizes))
    special = {
        value
        for config in _nested(sizes.config)
        for name, value in vars(config).items()
        if name.endswith(("_token_id", "_token_index")) and isinstance(value, int)
    }
    plain = next(value for value in range(vocabulary - 1, -1, -1) if value not in special)
    for value in special:
        ids[ids == value] = plain
    end = sizes.find("eos_token_id")
    if isinstance(end, int) and 0 <= end < vocabulary:
        # Sentence classifiers read the features at the end token, one per row.
        ids[..., -1] = end
    return ids


def _text_shape(sizes: InputSizes) -> tuple[int, ...]:
    if sizes.task == "MultipleChoice":
        return (sizes.batch, 2, sizes.length)
    return (sizes.batch, sizes.length)


def _ones(sizes: InputSizes) -> Tensor:
    return torch.ones(_text_shape(sizes), dtype=torch.long)


def _zeros(sizes: InputSizes) -> Tensor:
    return torch.zeros(_text_shape(sizes), dtype=torch.long)


def _positions(sizes: InputSizes) -> Tensor:
    return torch.arange(sizes.length).expand(_text_shape(sizes)).clone()


def _boxes(sizes: InputSizes) -> Tensor:
    corners = torch.randint(0, 8, (*_text_shape(sizes), 4))
    corners[..., 2:] += corners[..., :2]
    return corners


# --- labels -------------------------------------------------------------------------------------

_PER_TOKEN = ("TokenClassification", "MaskedLM", "CausalLM", "ConditionalGeneration", "PreTraining")


def _labels(sizes: InputSizes) -> Tensor:
    classes = sizes.find("num_labels", default=2)
    if sizes.task == "MultipleChoice":
        return torch.randint(0, 2, (sizes.batch,))
    if sizes.task == "TokenClassification":
        return torch.randint(0, classes, _text_shape(sizes))
    if (
        sizes.task in _PER_TOKEN
        or sizes.task.endswith("LM")
        or "LMHead" in type(sizes.model).__name__
    ):
        return _token_ids(sizes)
    return torch.randint(0, classes, (sizes.batch,))


def _span_positions(sizes: InputSizes) -> Tensor:
    return torch.randint(0, sizes.length, (sizes.batch,))


# --- images, video, sound -----------------------------------------------------------------------


IMAGE_SIZE = 224
"""Default image size of the image processors, for configurations without one (ResNet)."""


def _pixels(sizes: InputSizes) -> Tensor:
    size = sizes.find("image_size", "input_size", "crop_size", default=IMAGE_SIZE)
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = sizes.find("num_channels", "in_channels", "in_chans", default=3)
    frames = sizes.find("num_frames")
    lead = (sizes.batch, frames) if isinstance(frames, int) else (sizes.batch,)
    return torch.randn(*lead, channels, height, width)


def _pixel_mask(sizes: InputSizes) -> Tensor:
    pixels = _pixels(sizes)
    return torch.ones(pixels.shape[0], *pixels.shape[-2:], dtype=torch.long)


def _sound_features(sizes: InputSizes) -> Tensor:
    bins = sizes.find(
        "num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels", default=16
    )
    positions = sizes.find("max_source_positions")
    if "decoder_input_ids" in inspect.signature(sizes.model.forward).parameters and positions:
        return torch.randn(sizes.batch, bins, 2 * positions)
    return torch.randn(sizes.batch, 8 * sizes.length, bins)


def _waveform(sizes: InputSizes) -> Tensor:
    strides = sizes.find("conv_stride", default=[8])
    samples = sizes.length
    for stride in strides if isinstance(strides, list | tuple) else [strides]:
        samples *= stride
    return torch.randn(sizes.batch, samples + 20)


INPUT_MAKERS: Mapping[str, Callable[[InputSizes], Tensor]] = {
    "input_ids": _token_ids,
    "decoder_input_ids": _token_ids,
    "attention_mask": _ones,
    "decoder_attention_mask": _ones,
    "token_type_ids": _zeros,
    "position_ids": _positions,
    "bbox": _boxes,
    "labels": _labels,
    "start_positions": _span_positions,
    "end_positions": _span_positions,
    "next_sentence_label": lambda sizes: torch.randint(0, 2, (sizes.batch,)),
    "pixel_values": _pixels,
    "pixel_mask": _pixel_mask,
    "input_features": _sound_features,
    "input_values": _waveform,
}
