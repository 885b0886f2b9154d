"""compressed-tensors reader: folders of other tools as packed layers, code by code.

llm-compressor, vLLM's tools and `chop export --to compressed-tensors` write such folders. Codes and
scales are copied unchanged; weights are not converted to floats.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.errors import CheckpointError, ConfigError
from chop.export.coded import E8M0_NAN
from chop.export.compressed_tensors.groups import Group, find_group, parse_groups
from chop.export.compressed_tensors.inputs import SCALE
from chop.export.compressed_tensors.target import (
    FLOATS_IN,
    INTEGERS,
    INTEGERS_IN,
    METHOD,
    MX4,
    MX8,
    MX_BLOCK,
    NV4,
    NV_BLOCK,
    WHOLE,
)
from chop.export.foreign.reader import Read, Reader, only_floats
from chop.export.foreign.stored import (
    WORD,
    Stored,
    checked_scales,
    decoding,
    stored_affine,
    stored_integers,
    words_unpacked,
)
from chop.export.foreign.weight_files import document, list_tensors
from chop.formats import FP8, MXFP, NVFP4, NumberFormat
from chop.ir.huggingface.config_file import CONFIG, KV_SCALES

log = logging.getLogger(__name__)

ZEROS, ORDER = "weight_zero_point", "weight_g_idx"
PARTS = ("weight_packed", "weight_scale", "weight_shape", "weight_global_scale")
"""Tensors of a module other than its `weight` and `bias`."""
OTHERS = re.compile(
    r"\.(weight|input|output|q|k|v)_(packed|(global_)?scale|zero_point|g_idx|shape)$"
)
CACHE = "kv_cache_scheme"
CACHE_SCALES = re.compile(r"(\.[qkv]_(scale|zero_point)|\.[kv]_proj\.output_(scale|zero_point))$")
LAYER_SCALE = re.compile(r"\.layers\.(\d+)\.(?:\w+\.)?([kv])(?:_proj\.output)?_scale$")
"""Number of the layer and `k` or `v` in the name of a cache's scale."""
CODES = (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)
"""Dtypes of codes, which no other tensor of a folder has."""


def read(folder: Path) -> Read:
    """Reads a folder.

    Raises:
        ConfigError: if chop has no format for a scheme.
        CheckpointError: if files are missing or broken, or do not fit `config.json`.
    """
    config = document(folder / CONFIG)
    settings: Any = config.get("quantization_config")
    has_cache = isinstance(settings, Mapping) and bool(settings.get(CACHE))
    is_cache_only = has_cache and not settings.get("config_groups")
    groups = [] if is_cache_only else parse_groups(settings, str(folder))
    content = read_groups(
        folder, config, groups, cache_scheme=settings.get(CACHE) if has_cache else None
    )
    if not content.packed and not is_cache_only:
        raise only_floats(folder, METHOD)
    return content


def read_groups(
    folder: Path, config: Mapping[str, Any], groups: Sequence[Group], *, cache_scheme: Any
) -> Read:
    """Reads a folder with tensor names of compressed-tensors.

    Args:
        folder: local folder of safetensors files.
        config: content of `config.json`.
        groups: modules of each scheme.
        cache_scheme: settings of a key-value cache, whose scales are accepted: those of
            compressed-tensors, or the name of ModelOpt's algorithm; None without such settings.

    Raises:
        ConfigError, CheckpointError: see `read`.
    """
    return read_tensors(folder, config, list_tensors(folder), groups, cache_scheme=cache_scheme)


def read_tensors(
    folder: Path,
    config: Mapping[str, Any],
    tensors: dict[str, Tensor],
    groups: Sequence[Group],
    *,
    cache_scheme: Any,
) -> Read:
    """Returns the content of a folder from its tensors; see `read_groups`.

    Args:
        folder: folder, for messages.
        config: content of `config.json`.
        tensors: tensors by name; those of coded modules are removed.
        groups: modules of each scheme.
        cache_scheme: see `read_groups`.
    """
    paths = sorted({name.rpartition(".")[0] for name in tensors if name.endswith(".weight_scale")})
    packed, inputs = dict[str, Stored](), dict[str, NumberFormat]()
    for path in paths:
        group = find_group(path, groups)
        layer = f"'{folder}': '{path}'"
        packed[path] = _stored(path, tensors, group, layer)
        for part in ("weight", *PARTS, ORDER, *([] if group.is_symmetric else [ZEROS])):
            tensors.pop(f"{path}.{part}", None)
        has_none = f"{path}.{SCALE}" not in tensors and group.may_lack_inputs
        if group.inputs is not None and not has_none:
            scale = None if group.inputs.is_dynamic else tensors.pop(f"{path}.{SCALE}", None)
            with decoding(f"{layer} does not fit {group.format}"):
                inputs[path] = group.inputs.number_format(scale)
    if cache_scheme:
        is_fp8 = _is_static_fp8(cache_scheme)
        config = {**config, **_take_cache_scales(tensors, config, is_fp8, folder)}
    _refuse_others(tensors, folder)
    return Read(config, tensors, packed, inputs=inputs)


def _take_cache_scales(
    tensors: dict[str, Tensor], config: Mapping[str, Any], is_fp8: bool, folder: Path
) -> dict[str, Any]:
    """Removes the scales of a key-value cache from the tensors.

    Returns: the setting for `QuantizedCache.from_checkpoint`; empty, with a warning, unless every
        layer has static FP8 scales of keys and values.
    """
    own = {name: tensors.pop(name) for name in [*tensors] if CACHE_SCALES.search(name)}
    scales: dict[str, dict[int, float]] = {"k": {}, "v": {}}
    reason = "only FP8 with a static scale of keys and values in each layer is supported"
    for name, x in own.items():
        place = LAYER_SCALE.search(name)
        if place is None or x.numel() != 1:
            continue
        if 0 < float(x) < math.inf:
            scales[place[2]][int(place[1])] = float(x)
        elif is_fp8:
            reason = f"'{name}' is {float(x)} instead of a positive number"
    layers = [*range(config.get("num_hidden_layers") or 0)]
    if is_fp8 and layers == sorted(scales["k"]) == sorted(scales["v"]):
        log.warning(
            "%s: %s: the key-value cache stays in float unless you pass "
            "cache=chop.QuantizedCache.from_checkpoint(model).",
            folder,
            CACHE,
        )
        lists = {
            name: [scales[part][layer] for layer in layers]
            for name, part in (("keys", "k"), ("values", "v"))
        }
        return {KV_SCALES: lists}
    log.warning(
        "%s: %s: the key-value cache stays in float; its scales are ignored, because %s.",
        folder,
        CACHE,
        reason,
    )
    return {}


def _is_static_fp8(scheme: Any) -> bool:
    """Returns True if a cache scheme is FP8 with static scales per tensor; see `read_groups`."""
    if not isinstance(scheme, Mapping):
        return str(scheme).upper() == "FP8"
    expected = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    return all(scheme.get(key, value) == value for key, value in expected.items())


def _refuse_others(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Rejects tensors that no scheme of the folder uses, such as zero points of inputs."""
    other = [name for name in tensors if OTHERS.search(name)]
    packed = [name for name in other if name.endswith("weight_packed")]
    bare = [x for x in packed if x.replace("weight_packed", "weight_scale") not in tensors]
    if bare:
        raise CheckpointError(f"'{folder}': '{min(bare)}' has codes but no weight_scale.")
    if other:
        raise ConfigError(
            f"'{folder}': the tensor '{min(other)}' belongs to no scheme of config.json that chop "
            "supports."
        )
    codes = [name for name, x in tensors.items() if x.dtype in CODES]
    if codes:
        raise CheckpointError(f"'{folder}': '{min(codes)}' has codes but no weight_scale.")


def _stored(path: str, tensors: Mapping[str, Tensor], group: Group, layer: str) -> Stored:
    """Returns the weight of a layer; messages call it `layer`."""
    parts = {
        part: tensors[f"{path}.{part}"]
        for part in ("weight", ZEROS, ORDER, *PARTS)
        if f"{path}.{part}" in tensors
    }
    wanted, read = LAYOUTS[group.format]
    wanted = wanted if group.is_symmetric else (*wanted, ZEROS)
    missing = [part for part in wanted if part not in parts]
    if "weight" in parts and "weight" not in wanted:
        raise CheckpointError(f"{layer} has a float weight in addition to its codes.")
    if missing:
        raise CheckpointError(f"{layer} lacks {' and '.join(missing)} of {group.format}.")
    with decoding(f"{layer} does not fit {group.format} in {group.bits} bits"):
        _check_order(layer, parts.get(ORDER), group)
        return read(parts, group)


def _check_order(layer: str, order: Tensor | None, group: Group) -> None:
    """Raises ConfigError if groups do not consist of adjacent columns."""
    is_ordered = not group.is_reordered
    if order is not None:
        span = group.group_size or order.numel()
        neighbors = torch.arange(order.numel(), dtype=order.dtype) // span
        is_ordered = bool((order == -1).all()) or torch.equal(order, neighbors)
    if not is_ordered:
        raise ConfigError(
            f"{layer}: reordered columns (actorder 'group') are not supported. llm-compressor "
            "writes adjacent groups with actorder 'static'."
        )


def _integers(parts: Mapping[str, Tensor], group: Group) -> Stored:
    """Reads codes k + 2^(bits - 1) packed in words row by row, with scales by group, row or tensor.

    Zero points are packed in the same way, column by column.
    """
    packed, scale, bits = parts["weight_packed"], parts["weight_scale"], group.bits
    rows, columns = _shape(parts)
    if packed.dtype != torch.int32 or packed.ndim != 2 or len(packed) != rows:
        raise ValueError(f"weight_packed is {packed.dtype} {tuple(packed.shape)}")
    codes = _codes_in(packed, "weight_packed", columns, group)
    per_row = _check_scales(scale, rows, columns, group)
    span = group.group_size if group.strategy == "group" else None
    if group.is_symmetric:
        return stored_integers(codes.short() - (1 << (bits - 1)), scale, bits, span)
    zeros = parts[ZEROS]
    if zeros.dtype != torch.int32 or zeros.ndim != 2 or zeros.size(1) != per_row:
        raise ValueError(f"{ZEROS} is {zeros.dtype} {tuple(zeros.shape)}")
    unpacked = _codes_in(zeros.t(), ZEROS, rows, group).t().double()  # as codes, along the rows
    return stored_affine(codes, scale.view(rows, per_row), unpacked, bits, span)


def _codes_in(words: Tensor, name: str, count: int, group: Group) -> Tensor:
    """Unpacks 32-bit words to codes, uint8 (rows, count).

    Before compressed-tensors 0.18 codes did not span words: ten codes of 3 bits, six of 5.
    """
    bits, each = group.bits, WORD // group.bits
    dense, whole = -(-count * bits // WORD), -(-count // each)
    if words.size(1) == dense and (dense != whole or not group.has_whole_codes):
        return words_unpacked(words, bits, count)
    if words.size(1) != whole:
        raise ValueError(f"{name} is {words.dtype} {tuple(words.shape)}")
    places = torch.arange(each, dtype=torch.int32) * bits
    codes = (words.unsqueeze(-1) >> places) & ((1 << bits) - 1)
    return codes.flatten(1)[:, :count].to(torch.uint8)


def _check_scales(scale: Tensor, rows: int, columns: int, group: Group) -> int:
    """Returns the scales per row, and checks their number against the strategy."""
    has_groups, size = group.strategy in ("group", "block"), group.group_size
    per_row = -(-columns // size) if has_groups and size else 1
    lines = -(-rows // size) if group.strategy == "block" and size else rows
    is_flat = scale.ndim < 2 and not has_groups
    expected = (1, 1) if group.strategy == "tensor" else (lines, per_row)
    if (scale.view(-1, 1) if is_flat else scale).shape != expected:
        raise ValueError(f"weight_scale is {scale.dtype} {tuple(scale.shape)}")
    return per_row


def _whole(parts: Mapping[str, Tensor], group: Group) -> Stored:
    """Reads bytes: two's-complement integers, or e4m3."""
    codes, scale = parts["weight"], parts["weight_scale"]
    dtype = torch.float8_e4m3fn if group.kind == "float" else torch.int8
    if codes.dtype != dtype or codes.ndim != 2 or not codes.numel():
        raise ValueError(f"weight is {codes.dtype} {tuple(codes.shape)}")
    rows, columns = codes.shape
    _check_scales(scale, rows, columns, group)
    size = group.group_size
    if group.kind == "int":
        span = size if group.strategy == "group" else None
        return stored_integers(_in_bits(codes, group.bits), scale, group.bits, span)
    if bool(codes.float().isnan().any()):
        raise ValueError("some of its codes are NaN")
    settings: dict[str, Any] = {"granularity": group.strategy}
    if group.strategy in ("group", "block"):
        settings["group_size"] = size
    return _stored_bytes(FP8(**settings), codes, checked_scales(scale))


def _in_bits(codes: Tensor, bits: int) -> Tensor:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    if bool(((codes < low) | (codes > high)).any()):
        raise ValueError(f"some of its codes have more than {bits} bits")
    return codes


def _shape(parts: Mapping[str, Tensor]) -> tuple[int, int]:
    shape = parts["weight_shape"]
    if shape.dtype not in (torch.int64, torch.int32) or shape.numel() != 2 or shape.min() < 1:
        raise ValueError(f"weight_shape is {shape.dtype} {tuple(shape.shape)}")
    rows, columns = map(int, shape.reshape(-1).tolist())
    return rows, columns


def _mxfp4(parts: Mapping[str, Tensor], group: Group) -> Stored:
    codes, scale = parts["weight_packed"], parts["weight_scale"]
    _check_blocks(codes, scale, torch.uint8, 2 * codes.size(-1), MX_BLOCK)
    return _stored_bytes(MXFP(4, 2), codes, scale.reshape(-1))


def _mxfp8(parts: Mapping[str, Tensor], group: Group) -> Stored:
    codes, scale = parts["weight"], parts["weight_scale"]
    _check_blocks(codes, scale, torch.float8_e4m3fn, codes.size(-1), MX_BLOCK)
    return _stored_bytes(MXFP(8, 4), codes, scale.reshape(-1))


def _nvfp4(parts: Mapping[str, Tensor], group: Group) -> Stored:
    """Reads NVFP4. The file stores the inverse of the tensor's scale, which adds one rounding."""
    codes, scale, inverse = (parts[n] for n in ("weight_packed", "weight_scale", PARTS[-1]))
    _check_blocks(codes, scale.view(torch.uint8), torch.uint8, 2 * codes.size(-1), NV_BLOCK)
    checked_scales(scale.view(torch.float8_e4m3fn))
    if inverse.numel() != 1 or not bool((checked_scales(inverse) > 0).all()):
        raise ValueError(f"weight_global_scale is {tuple(inverse.shape)}, not a positive number")
    tensor_scale = (1 / inverse.float()).reshape(())
    return _stored_bytes(NVFP4(), codes, scale.view(torch.uint8).reshape(-1), tensor_scale)


def _stored_bytes(
    number_format: NumberFormat, codes: Tensor, scales: Tensor, tensor_scale: Tensor | None = None
) -> Stored:
    """Returns a weight from bytes, (rows, bytes per row), that hold one or two codes each."""
    rows, count = codes.shape
    columns = count * (1 if codes.dtype == torch.float8_e4m3fn else 2)
    flat = codes.view(torch.uint8).reshape(-1)
    return Stored(number_format, flat, scales, tensor_scale, (rows, columns))


def _check_blocks(
    codes: Tensor, scale: Tensor, dtype: torch.dtype, columns: int, block: int
) -> None:
    expected = (codes.size(0), -(-columns // block))
    if codes.dtype != dtype or codes.ndim != 2 or not codes.numel() or scale.shape != expected:
        raise ValueError(f"its codes are {codes.dtype} {tuple(codes.shape)}, {tuple(scale.shape)}")
    if scale.dtype != torch.uint8:
        raise ValueError(f"weight_scale is {scale.dtype}")
    if block == MX_BLOCK and bool((scale == E8M0_NAN).any()):
        raise ValueError("a block of its weight is NaN")


Decoder = Callable[[Mapping[str, Tensor], Group], Stored]
LAYOUTS: Mapping[str, tuple[tuple[str, ...], Decoder]] = {
    INTEGERS: (("weight_packed", "weight_scale", "weight_shape"), _integers),
    **dict.fromkeys((INTEGERS_IN, FLOATS_IN, WHOLE), (("weight", "weight_scale"), _whole)),
    MX4: (("weight_packed", "weight_scale"), _mxfp4),
    MX8: (("weight", "weight_scale"), _mxfp8),
    NV4: (("weight_packed", "weight_scale", "weight_global_scale"), _nvfp4),
}
"""Required tensors of a module and their decoder, by the folder's format."""


READER = Reader(METHOD, read, may_be_float=True)
