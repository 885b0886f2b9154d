"""FP8 reader: folders of DeepSeek's FP8, AutoFP8 and transformers, decoded to floats.

Source of the layout: `FineGrainedFP8Config` of transformers 5, AutoFP8 0.1. A `weight` of e4m3 has
a float32 factor, `weight_scale_inv` or `weight_scale`, per block of `weight_block_size` or per
tensor. Engines also round inputs to e4m3, with a dynamic scale or a static one, `activation_scale`
or `input_scale`. Layers in `modules_to_not_convert` or `ignored_layers` are floats.

Weights become floats because models are published in these folders and compressed from them. The
dequantizer of transformers is not used: it derives block sizes from the number of scales, which is
wrong if the last block is smaller, and accepts missing scales.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.errors import CheckpointError, ConfigError
from chop.export.compressed_tensors.groups import CLASSES, Group
from chop.export.compressed_tensors.inputs import SCALE, InputScheme
from chop.export.compressed_tensors.reader import CACHE, read_tensors
from chop.export.compressed_tensors.target import FLOATS_IN
from chop.export.foreign.reader import Read, Reader
from chop.export.foreign.stored import Stored
from chop.export.foreign.weight_files import document, list_tensors
from chop.formats import Encoded
from chop.ir.huggingface.config_file import CONFIG

log = logging.getLogger(__name__)

METHOD, E4M3 = "fp8", "e4m3"
NAMES = {"weight_scale_inv": "weight_scale", "activation_scale": SCALE}
"""Suffixes of tensor names, and the suffixes of the same tensors in compressed-tensors."""
BLOCK = [128, 128]
"""Default block size of weights."""
SCHEMES = ("dynamic", "static")


def read(folder: Path) -> Read:
    """Reads a folder.

    Raises:
        ConfigError: if chop has no format for its settings.
        CheckpointError: if files are missing or broken, or do not fit the settings.
    """
    config = document(folder / CONFIG)
    settings: Any = config.get("quantization_config")
    tensors = _renamed(list_tensors(folder), f"'{folder}'")
    scheme = settings.get("activation_scheme") or SCHEMES[0]
    group = _group(settings, scheme, tensors, f"'{folder}'")
    has_cache = bool(settings.get(CACHE))
    content = read_tensors(
        folder, config, tensors, [group], cache_scheme="FP8" if has_cache else None
    )
    log.warning(
        "%s: FP8 weights are decoded to floats, and layer inputs are not rounded; engines round "
        "them to FP8 (activation_scheme '%s').",
        *(folder, scheme),
    )
    dtype = _dtype(config.get("dtype") or config.get("torch_dtype"))
    floats = {f"{path}.weight": _decoded(one, dtype) for path, one in content.packed.items()}
    plain = {key: x for key, x in config.items() if key != "quantization_config"}
    return Read(plain, {**content.tensors, **floats}, {})


def _renamed(tensors: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """Returns the tensors by their compressed-tensors names."""
    renamed = dict[str, Tensor]()
    for name, x in tensors.items():
        path, dot, last = name.rpartition(".")
        own = f"{path}{dot}{NAMES.get(last, last)}"
        if own in renamed:
            raise CheckpointError(f"{where} has two tensors for '{own}'; one is '{name}'.")
        renamed[own] = x
    return renamed


def _dtype(name: Any) -> torch.dtype:
    """Returns the model's dtype, which its config names."""
    dtype = getattr(torch, str(name), None)
    is_wide = isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype.itemsize > 1
    return dtype if is_wide else torch.bfloat16  # type: ignore[return-value]


def _decoded(one: Stored, dtype: torch.dtype) -> Tensor:
    assert one.shape is not None
    stored = Encoded(one.codes, torch.Size(one.shape), torch.float32, one.scales)
    return one.number_format.decode(stored).to(dtype)


def _group(
    settings: Mapping[str, Any], scheme: Any, tensors: Mapping[str, Tensor], where: str
) -> Group:
    """Returns the scheme of all layers that have scales."""
    if scheme not in SCHEMES:
        raise ConfigError(
            f"{where}: expected an activation_scheme of {SCHEMES}, got {scheme!r:.40}."
        )
    if (settings.get("expert_dtype") or METHOD) != METHOD or (settings.get("fmt") or E4M3) != E4M3:
        raise ConfigError(f"{where}: expected all weights in e4m3, including those of experts.")
    has_blocks = any(x.numel() > 1 for name, x in tensors.items() if name.endswith(".weight_scale"))
    sides = settings.get("weight_block_size", BLOCK if has_blocks else None)
    strategy, size = _weights(sides, where)
    is_static = scheme == "static"
    static = InputScheme(8, "float", "tensor", None, is_dynamic=False)
    return Group(
        *(CLASSES, (), FLOATS_IN, 8, "float", strategy, size),
        is_symmetric=True,
        inputs=static if is_static else None,
        may_lack_inputs=True,
    )


def _weights(sides: Any, where: str) -> tuple[str, int | None]:
    """Returns the strategy and group size."""
    if sides is None:
        return "tensor", None
    is_pair = isinstance(sides, list) and len(sides) == 2
    if not is_pair or any(type(side) is not int or not 1 <= side < 2**20 for side in sides):
        raise ConfigError(f"{where}: expected a weight_block_size like {BLOCK}, got {sides!r:.40}.")
    rows, columns = sides
    if rows not in (1, columns) or columns == 1:
        raise ConfigError(f"{where}: expected square blocks or blocks of one row, got {sides}.")
    return ("block" if rows > 1 else "group"), columns


READER = Reader(METHOD, read, may_be_float=True)
