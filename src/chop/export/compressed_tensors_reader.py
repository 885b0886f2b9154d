"""compressed-tensors reader: folders of other tools as packed layers, code by code.

llm-compressor, vLLM's tools and `chop export --to compressed-tensors` write such folders. Codes and
scales are taken as they are: no weight becomes a float on the way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.errors import CheckpointError, ConfigError, did_you_mean
from chop.export.compressed_tensors import INTEGERS, METHOD, MX4, MX8, MX_BLOCK, NV4, NV_BLOCK
from chop.export.expressions import expression, finds
from chop.export.reader import Read, Reader
from chop.export.stored import (
    WORD,
    Stored,
    checked_scales,
    decoding,
    stored_affine,
    stored_integers,
    words_unpacked,
)
from chop.export.weight_files import document, tensors_of
from chop.formats import MXFP, NVFP4
from chop.ir.huggingface.config_file import CONFIG

ZEROS = "weight_zero_point"
PARTS = ("weight_packed", "weight_scale", "weight_shape", "weight_global_scale")
"""Tensors of a module beside its `weight` and `bias`."""
OTHERS = re.compile(
    r"\.(weight|input|output|q|k|v)_(packed|(global_)?scale|zero_point|g_idx|shape)$"
)
STRATEGIES = ("tensor", "channel", "group")
CLASSES = ("Embedding", "Linear")
"""Of layers that are packed, as targets name them."""
E8M0_NAN = 255
EXPRESSION = "re:"


@dataclass(frozen=True)
class Group:
    """Modules of one scheme, as `config_groups` has them.

    Attributes:
        targets: classes and paths.
        expressions: that find paths.
        format: how weights are stored.
        bits: of a code.
        strategy: what shares a scale.
        group_size: columns that do, with strategy `group`.
        is_symmetric: there are no zero points.
    """

    targets: tuple[str, ...]
    expressions: tuple[re.Pattern[str], ...]
    format: str
    bits: int
    strategy: str
    group_size: int | None
    is_symmetric: bool

    def matches(self, path: str) -> Iterator[tuple[int, str]]:
        """Rank and text of each target that may be a module's: path, expression, class.

        Args:
            path: of the module; its class is not known.
        """
        for target in self.targets:
            if target == path or target in CLASSES:
                yield (0 if target == path else 2), target
        yield from ((1, x.pattern) for x in self.expressions if finds(x, path))


def read(folder: Path) -> Read:
    """What a folder holds.

    Args:
        folder: local, of safetensors.

    Raises:
        ConfigError: a scheme has no format here, and is named.
        CheckpointError: files are missing or broken, or do not fit what `config.json` says.
    """
    config = document(folder / CONFIG)
    groups = parse_groups(config.get("quantization_config"), str(folder))
    tensors = tensors_of(folder)
    paths = sorted({name.rpartition(".")[0] for name in tensors if name.endswith(".weight_scale")})
    packed = {}
    for path in paths:
        group = group_of(path, groups)
        packed[path] = _stored(path, tensors, group)
        for part in ("weight", *PARTS, *([] if group.is_symmetric else [ZEROS])):
            tensors.pop(f"{path}.{part}", None)
    _refuse_others(tensors, folder)
    return Read(config, tensors, packed)


def _refuse_others(names: Iterable[str], folder: Path) -> None:
    """Refuses tensors of schemes that are not read, as zero points and scales of inputs."""
    other = [name for name in names if OTHERS.search(name)]
    if other:
        raise ConfigError(
            f"'{folder}': expected symmetric weights and float inputs, got '{min(other)}'."
        )


def parse_groups(settings: Any, where: str) -> list[Group]:
    """The groups of a `quantization_config`.

    Args:
        settings: of `config.json`.
        where: the folder, for messages.

    Raises:
        ConfigError: it is none, or a group has a scheme that has no format here.
    """
    groups = settings.get("config_groups") if isinstance(settings, Mapping) else None
    if not isinstance(groups, Mapping) or not groups:
        raise ConfigError(f"'{where}': expected config_groups in its quantization_config.")
    default = settings.get("format")
    return [_group(plain, default, f"'{where}', {name}") for name, plain in groups.items()]


def _group(plain: Any, default: Any, where: str) -> Group:
    weights = plain.get("weights") if isinstance(plain, Mapping) else None
    if not isinstance(weights, Mapping) or not isinstance(plain.get("targets"), Sequence):
        raise ConfigError(f"{where}: expected targets and weights, got {plain!r:.80}.")
    for key in ("input_activations", "output_activations"):
        if plain.get(key) is not None:
            raise ConfigError(
                f"{where}: expected float activations, got {key}, which has no form here."
            )
    if weights.get("actorder") is not None:
        raise ConfigError(f"{where}: expected weights in their order, got actorder.")
    stored = plain.get("format") or default
    if not isinstance(stored, str) or stored not in LAYOUTS:
        raise ConfigError(f"{where}: format '{stored}': {did_you_mean(str(stored), LAYOUTS)}")
    bits, size = weights.get("num_bits"), weights.get("group_size")
    if type(bits) is not int or not 2 <= bits <= 8:
        raise ConfigError(f"{where}: expected num_bits from 2 to 8, got {bits!r}.")
    if size is not None and (type(size) is not int or size < 1):
        raise ConfigError(f"{where}: expected a group_size from 1 on, got {size!r}.")
    named = [*map(str, plain["targets"])]
    targets = tuple(x for x in named if not x.startswith(EXPRESSION))
    found = (x.removeprefix(EXPRESSION) for x in named if x.startswith(EXPRESSION))
    expressions = tuple(expression(x, where) for x in found)
    strategy, is_symmetric = str(weights.get("strategy")), weights.get("symmetric") is not False
    if not is_symmetric and (stored != INTEGERS or strategy == "tensor"):
        raise ConfigError(
            f"{where}: expected symmetric weights, got zero points in {stored} with strategy "
            f"'{strategy:.40}'."
        )
    if stored == INTEGERS and (strategy not in STRATEGIES or (strategy == "group" and not size)):
        raise ConfigError(
            f"{where}: expected a strategy of {', '.join(STRATEGIES)}, and of a group_size, got "
            f"'{strategy:.40}' of {size}."
        )
    return Group(targets, expressions, stored, bits, strategy, size, is_symmetric)


def group_of(path: str, groups: Sequence[Group]) -> Group:
    """The group of a module: of its path, else of an expression, else of its class.

    Of several expressions it is the first in the alphabet, as in the library; of several groups
    with the same target the last one.

    Args:
        path: of the module.
        groups: of a folder, see `parse_groups`.

    Raises:
        ConfigError: there is none, or it depends on the class.
    """
    found = {match: group for group in groups for match in group.matches(path)}
    if not found:
        raise ConfigError(f"{METHOD}: '{path}' has scales, and no group of config.json names it.")
    (rank, _), chosen = min(found.items(), key=lambda item: item[0])
    if rank == 2 and any(group != chosen for group in found.values()):
        raise ConfigError(
            f"{METHOD}: expected one group of config.json for {' and '.join(CLASSES)}, or one that "
            f"names '{path}'."
        )
    return chosen


def _stored(path: str, tensors: Mapping[str, Tensor], group: Group) -> Stored:
    parts = {
        part: tensors[f"{path}.{part}"]
        for part in ("weight", ZEROS, *PARTS)
        if f"{path}.{part}" in tensors
    }
    wanted, read = LAYOUTS[group.format]
    wanted = wanted if group.is_symmetric else (*wanted, ZEROS)
    missing = [part for part in wanted if part not in parts]
    if "weight" in parts and "weight" not in wanted:
        raise CheckpointError(f"{METHOD}: '{path}' has a weight of floats beside its codes.")
    if missing:
        raise CheckpointError(
            f"{METHOD}: '{path}' lacks {' and '.join(missing)} of {group.format}."
        )
    with decoding(f"{METHOD}: '{path}' does not fit {group.format} in {group.bits} bits"):
        return read(parts, group)


def _integers(parts: Mapping[str, Tensor], group: Group) -> Stored:
    """k + 2^(bits - 1) one after the other in words, rows apart; scales by group, row or all.

    Zero points are packed likewise, columns apart.
    """
    packed, scale, bits = parts["weight_packed"], parts["weight_scale"], group.bits
    rows, columns = _shape(parts)
    if packed.dtype != torch.int32 or packed.shape != (rows, -(-columns * bits // WORD)):
        raise ValueError(f"weight_packed is {packed.dtype} {tuple(packed.shape)}")
    codes = words_unpacked(packed, bits, columns)
    of_groups, size = group.strategy == "group", group.group_size
    per_row = -(-columns // size) if of_groups and size else 1
    is_flat = scale.ndim < 2 and not of_groups
    expected = (1, 1) if group.strategy == "tensor" else (rows, per_row)
    if (scale.view(-1, 1) if is_flat else scale).shape != expected:
        raise ValueError(f"weight_scale is {scale.dtype} {tuple(scale.shape)}")
    span = size if of_groups else None
    if group.is_symmetric:
        return stored_integers(codes.short() - (1 << (bits - 1)), scale, bits, span)
    zeros = parts[ZEROS]
    if zeros.dtype != torch.int32 or zeros.shape != (-(-rows * bits // WORD), per_row):
        raise ValueError(f"{ZEROS} is {zeros.dtype} {tuple(zeros.shape)}")
    unpacked = words_unpacked(zeros.t(), bits, rows).t().double()  # as codes, along the rows
    return stored_affine(codes, scale.view(rows, per_row), unpacked, bits, span)


def _shape(parts: Mapping[str, Tensor]) -> tuple[int, int]:
    shape = parts["weight_shape"]
    if shape.dtype not in (torch.int64, torch.int32) or shape.numel() != 2 or shape.min() < 1:
        raise ValueError(f"weight_shape is {shape.dtype} {tuple(shape.shape)}")
    rows, columns = map(int, shape.reshape(-1).tolist())
    return rows, columns


def _mxfp4(parts: Mapping[str, Tensor], group: Group) -> Stored:
    codes, scale = parts["weight_packed"], parts["weight_scale"]
    _check_blocks(codes, scale, torch.uint8, 2 * codes.size(-1), MX_BLOCK)
    return Stored(MXFP(4, 2), codes.reshape(-1), scale.reshape(-1))


def _mxfp8(parts: Mapping[str, Tensor], group: Group) -> Stored:
    codes, scale = parts["weight"], parts["weight_scale"]
    _check_blocks(codes, scale, torch.float8_e4m3fn, codes.size(-1), MX_BLOCK)
    return Stored(MXFP(8, 4), codes.view(torch.uint8).reshape(-1), scale.reshape(-1))


def _nvfp4(parts: Mapping[str, Tensor], group: Group) -> Stored:
    """The file has the inverse of the tensor's scale: one rounding more."""
    codes, scale, of_all = (parts[n] for n in ("weight_packed", "weight_scale", PARTS[-1]))
    _check_blocks(codes, scale.view(torch.uint8), torch.uint8, 2 * codes.size(-1), NV_BLOCK)
    checked_scales(scale.view(torch.float8_e4m3fn))
    if of_all.numel() != 1 or not bool((checked_scales(of_all) > 0).all()):
        raise ValueError(f"weight_global_scale is {tuple(of_all.shape)}, and no positive number")
    tensor_scale = (1 / of_all.float()).reshape(())
    return Stored(NVFP4(), codes.reshape(-1), scale.view(torch.uint8).reshape(-1), tensor_scale)


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
    MX4: (("weight_packed", "weight_scale"), _mxfp4),
    MX8: (("weight", "weight_scale"), _mxfp8),
    NV4: (("weight_packed", "weight_scale", "weight_global_scale"), _nvfp4),
}
"""By format of a folder: the tensors of a module, and what reads them."""


READER = Reader(METHOD, read)
