"""Image preprocessing for a user's model: size and pixel scaling as in its training.

Shapes: C channels, H rows, W columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from chop.base.files.documents import read_json
from chop.config import convert
from chop.data import DATASETS, DatasetInfo
from chop.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from chop.workloads.settings import WorkloadConfig

SETTINGS = ("pixel_mean", "pixel_std", "image_size", "channels")
_PREPROCESSOR = "preprocessor_config.json"


@dataclass(frozen=True)
class Pictures:
    """Image preprocessing of a model.

    Attributes:
        info: the data set, with pixel mean and standard deviation for the model.
        size: (C, H, W); None uses that of the data set.
        source: origin of mean and standard deviation.
    """

    info: DatasetInfo
    size: tuple[int, int, int] | None
    source: str

    def __str__(self) -> str:
        size = self.size or self.info.image_size
        size_text = "" if size is None else f" of {' x '.join(map(str, size))}"
        if size is not None and self.size is None and self.info.name not in DATASETS:
            size_text += ", the size of the first one"
        mean, std = (
            _format_values(values) for values in (self.info.pixel_mean, self.info.pixel_std)
        )
        return f"images{size_text}, pixels from 0 to 1 as (x - {mean}) / {std}: {self.source}"


def get_preprocessing(config: WorkloadConfig, model: nn.Module, info: DatasetInfo) -> Pictures:
    """Returns the preprocessing from the settings, the model's files or its class.

    Hugging Face models have `preprocessor_config.json`. Others may have `default_cfg`, a mapping
    with `input_size`, `mean` and `std` as in timm. The pixel statistics of built-in data sets are
    known. Otherwise pixels are scaled to -1 to 1, which the report mentions.

    Raises:
        ConfigError: if settings conflict, or the model has only one of mean and standard deviation
            and the settings lack the other.
    """
    defaults = _model_pictures(config, model, info)
    size = _asked_size(config, defaults.size or info.image_size)
    requested = {name: getattr(config, name) for name in ("pixel_mean", "pixel_std")}
    scale = {name: _per_channel(name, values, defaults, size) for name, values in requested.items()}
    given = [
        f"--{name.replace('_', '-')}" for name, values in requested.items() if values is not None
    ]
    rest = f"; the other is {defaults.source}" if len(given) == 1 else ""
    source = f"as set by {' and '.join(given)}{rest}" if given else defaults.source
    wanted = size if size != info.image_size else defaults.size
    mean, std = scale["pixel_mean"], scale["pixel_std"]
    return Pictures(dataclasses.replace(info, pixel_mean=mean, pixel_std=std), wanted, source)


def reduces_labels(name: str, model: nn.Module) -> bool:
    """Returns whether a model counts the classes of masks from 1, with 0 as void.

    `do_reduce_labels` of its processor says, as for ADE20K.
    """
    given = {} if getattr(model, "config", None) is None else _preprocessor(name)
    return bool(given.get("do_reduce_labels", given.get("reduce_labels", False)))


def _per_channel(
    name: str,
    requested: tuple[float, ...] | None,
    defaults: Pictures,
    size: tuple[int, int, int] | None,
) -> tuple[float, ...]:
    """Returns the requested or detected scaling: one number, or one per channel."""
    values = requested or _gray(getattr(defaults.info, name))
    if size is None or len(values) in (1, size[0]):
        return values
    source = "" if requested else f", {defaults.source}"
    raise ConfigError(
        f"{name}: expected one number, or one for each of {size[0]} channels, got "
        f"{len(values)}{source}; --channels changes the images."
    )


def _gray(values: tuple[float, ...]) -> tuple[float, ...]:
    """Returns one number if all channels agree, which fits any number of channels."""
    return values[:1] if len({*values}) == 1 else values


def _asked_size(
    config: WorkloadConfig, size: tuple[int, int, int] | None
) -> tuple[int, int, int] | None:
    if config.image_size is None and config.channels is None:
        return size
    if config.image_size is None and size is None:
        raise ConfigError("channels: the image size is unknown; pass --image-size as well.")
    channels, *sides = size or (3,)
    height, width = (*config.image_size, *config.image_size)[:2] if config.image_size else sides
    return config.channels or channels, height, width


def _model_pictures(config: WorkloadConfig, model: nn.Module, info: DatasetInfo) -> Pictures:
    scale, where, size = _own_scale(config.model, model)
    requested = {name: getattr(config, f"pixel_{name}") for name in scale}
    if any(scale.values()):
        scale = {name: scale[name] or requested[name] for name in scale}
        if not any(requested.values()):
            _check_whole(scale, where)
    mean, std = scale["mean"], scale["std"]
    if mean and std:
        info = dataclasses.replace(info, pixel_mean=mean, pixel_std=std)
        source = f"as {where} says"
    elif info is DATASETS.get(info.name):
        source = f"as is usual for {info.name}"
    else:
        source = (
            "an assumption, since neither the model nor its files have it; set --pixel-mean "
            "and --pixel-std"
        )
    return Pictures(info, size, source)


Scale = dict[str, tuple[float, ...] | None]
"""`mean` and `std` by name."""


def _own_scale(name: str, model: nn.Module) -> tuple[Scale, str, tuple[int, int, int] | None]:
    """Returns pixel mean and standard deviation of a model, if known, and its (C, H, W).

    Raises:
        ConfigError: if a value is invalid.
    """
    config = getattr(model, "config", None)
    if config is not None:
        given = _preprocessor(name)
        keys = {"mean": "image_mean", "std": "image_std"}
        if not given.get("do_normalize", True):
            given = {**given, "image_mean": 0.0, "image_std": 1.0}
        where, size = _PREPROCESSOR, _get_size(config, given)
    else:
        where, keys = f"default_cfg of {type(model).__name__}", {"mean": "mean", "std": "std"}
        given = convert(getattr(model, "default_cfg", None) or {}, dict[str, Any], where)
        size = convert(given.get("input_size"), tuple[int, int, int] | None, f"{where}: input_size")
    scale = {key: _numbers(given.get(own), f"{where}: {own}") for key, own in keys.items()}
    if not all(value > 0 for value in scale["std"] or ()):
        raise ConfigError(
            f"{where}: {keys['std']}: got {given[keys['std']]}, expected more than 0."
        )
    return scale, where, size


def _numbers(value: Any, where: str) -> tuple[float, ...] | None:
    listed = value.tolist() if isinstance(value, torch.Tensor) else value
    numbers = convert(listed, float | tuple[float, ...] | None, where)
    return (numbers,) if isinstance(numbers, float) else numbers or None


def _check_whole(scale: Scale, where: str) -> None:
    """Raises ConfigError if a model has only one of mean and standard deviation."""
    has, lacks = sorted(scale, key=lambda name: not scale[name])
    if scale[has] and not scale[lacks]:
        raise ConfigError(
            f"{where} has the {has} of pixels but no {lacks}: add both, or pass --pixel-{lacks}."
        )


def _get_size(config: Any, given: Mapping[str, Any]) -> tuple[int, int, int] | None:
    size = getattr(config, "image_size", None) or given.get("crop_size") or given.get("size")
    if isinstance(size, Mapping):
        edge = size.get("shortest_edge")
        size = (size.get("height", edge), size.get("width", edge))
    if size is None:
        return None
    height, width = (size, size) if isinstance(size, int) else size
    return getattr(config, "num_channels", 3), height, width


def _preprocessor(name: str) -> dict[str, Any]:
    from transformers.utils.hub import cached_file

    path = cached_file(
        name,
        _PREPROCESSOR,
        local_files_only=True,
        _raise_exceptions_for_missing_entries=False,
    )
    return _read_json(path) if path else {}


def _read_json(path: str) -> dict[str, Any]:
    try:
        settings: dict[str, Any] = read_json(path, "config")
    except (OSError, ConfigError) as error:
        raise CheckpointError(f"'{path}' cannot be read: {error}.") from None
    return settings


def _format_values(values: Any) -> str:
    return ", ".join(f"{value:g}" for value in values)
