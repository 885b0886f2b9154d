"""Pictures for a model of the user's own: the size and the scale of pixels that it was trained on.

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
    """How a model wants pictures.

    Attributes:
        info: the data set, with the mean and the deviation of pixels that the model wants.
        size: (C, H, W); None takes that of the data set.
        source: where mean and deviation come from.
    """

    info: DatasetInfo
    size: tuple[int, int, int] | None
    source: str

    def __str__(self) -> str:
        size = self.size or self.info.image_size
        shown = "" if size is None else f" of {' x '.join(map(str, size))}"
        mean, std = (_shown(values) for values in (self.info.pixel_mean, self.info.pixel_std))
        return f"pictures{shown}, pixels from 0 to 1 as (x - {mean}) / {std}: {self.source}"


def pictures_for(config: WorkloadConfig, model: nn.Module, info: DatasetInfo) -> Pictures:
    """How a model wants pictures: as the settings say, or else as its files or its class say.

    Hugging Face's have `preprocessor_config.json`. Others may have `default_cfg`, a mapping with
    `input_size`, `mean` and `std` as timm's models have it. Of data sets by name the pixels are
    known; of others they are taken to be from -1 to 1, which is said.

    Raises:
        ConfigError: settings that do not go together, or the model has a mean without a deviation
            or a deviation without a mean, and the settings do not have the other.
    """
    found = _of_model(config, model, info)
    size = _asked_size(config, found.size or info.image_size)
    asked = {name: getattr(config, name) for name in ("pixel_mean", "pixel_std")}
    scale = {name: _per_channel(name, values, found, size) for name, values in asked.items()}
    given = [f"--{name.replace('_', '-')}" for name, values in asked.items() if values is not None]
    rest = f"; the other is {found.source}" if len(given) == 1 else ""
    source = f"as asked by {' and '.join(given)}{rest}" if given else found.source
    wanted = size if size != info.image_size else found.size
    mean, std = scale["pixel_mean"], scale["pixel_std"]
    return Pictures(dataclasses.replace(info, pixel_mean=mean, pixel_std=std), wanted, source)


def reduces_labels(name: str, model: nn.Module) -> bool:
    """Returns true if a model of transformers counts the classes of masks from 1, and 0 is void.

    `do_reduce_labels` of its processor says so, as for ADE20K.
    """
    given = {} if getattr(model, "config", None) is None else _preprocessor(name)
    return bool(given.get("do_reduce_labels", given.get("reduce_labels", False)))


def _per_channel(
    name: str,
    asked: tuple[float, ...] | None,
    found: Pictures,
    size: tuple[int, int, int] | None,
) -> tuple[float, ...]:
    """What is asked for, or else found: one number, or one for each channel."""
    values = asked or _gray(getattr(found.info, name))
    if size is None or len(values) in (1, size[0]):
        return values
    source = "" if asked else f", {found.source}"
    raise ConfigError(
        f"{name}: expected one number, or one for each of {size[0]} channels, got "
        f"{len(values)}{source}; --channels changes the pictures."
    )


def _gray(values: tuple[float, ...]) -> tuple[float, ...]:
    """One number where all channels have the same, which holds for any number of channels."""
    return values[:1] if len({*values}) == 1 else values


def _asked_size(
    config: WorkloadConfig, size: tuple[int, int, int] | None
) -> tuple[int, int, int] | None:
    if config.image_size is None and config.channels is None:
        return size
    if config.image_size is None and size is None:
        raise ConfigError("channels: the size of the pictures is not known; give --image-size too.")
    channels, *sides = size or (3,)
    height, width = (*config.image_size, *config.image_size)[:2] if config.image_size else sides
    return config.channels or channels, height, width


def _of_model(config: WorkloadConfig, model: nn.Module, info: DatasetInfo) -> Pictures:
    found, where, size = _own_scale(config.model, model)
    asked = {name: getattr(config, f"pixel_{name}") for name in found}
    if any(found.values()):
        found = {name: found[name] or asked[name] for name in found}
        if not any(asked.values()):
            _check_whole(found, where)
    mean, std = found["mean"], found["std"]
    if mean and std:
        info = dataclasses.replace(info, pixel_mean=mean, pixel_std=std)
        source = f"as {where} says"
    elif info is DATASETS.get(info.name):
        source = f"as is usual for {info.name}"
    else:
        source = (
            "an assumption, since neither the model nor its files tell; --pixel-mean and "
            "--pixel-std do"
        )
    return Pictures(info, size, source)


Scale = dict[str, tuple[float, ...] | None]
"""`mean` and `std` by name."""


def _own_scale(name: str, model: nn.Module) -> tuple[Scale, str, tuple[int, int, int] | None]:
    """Mean and deviation of the pixels as a model has them, where it says so, and its (C, H, W).

    Raises:
        ConfigError: a value that is none.
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
    found = convert(listed, float | tuple[float, ...] | None, where)
    return (found,) if isinstance(found, float) else found or None


def _check_whole(found: Scale, where: str) -> None:
    """Raises ConfigError where a model has a mean alone, or a deviation alone."""
    has, lacks = sorted(found, key=lambda name: not found[name])
    if found[has] and not found[lacks]:
        raise ConfigError(
            f"{where} has the {has} of pixels but no {lacks}: give it both, or pass "
            f"--pixel-{lacks}."
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


def _shown(values: Any) -> str:
    return ", ".join(f"{value:g}" for value in values)
