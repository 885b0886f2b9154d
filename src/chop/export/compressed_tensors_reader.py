"""compressed-tensors reader: folders of other tools as packed layers, code by code.

llm-compressor, vLLM's tools and `chop export --to compressed-tensors` write such folders. Codes and
scales are taken as they are: no weight becomes a float on the way.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop.errors import CheckpointError, ConfigError, did_you_mean, first_line
from chop.export.compressed_tensors import INTEGERS, METHOD, MX4, MX8, MX_BLOCK, NV4, NV_BLOCK, WORD
from chop.files import write_json
from chop.formats import MXFP, NVFP4, GroupInteger, NumberFormat, ScaleInteger
from chop.formats.bfloat16 import BITS, to_bits
from chop.formats.packing import pack_bits, unpack_bits
from chop.nn.packed.base import BUFFER_NAMES

PARTS = ("weight_packed", "weight_scale", "weight_shape", "weight_global_scale")
"""Tensors of a module beside its `weight` and `bias`."""
OTHERS = re.compile(
    r"\.(weight|input|output|q|k|v)_(packed|(global_)?scale|zero_point|g_idx|shape)$"
)
CODES, SCALES, TENSOR_SCALE = BUFFER_NAMES["weight"]


@dataclass(frozen=True)
class Group:
    """Modules of one scheme, as `config_groups` has them.

    Attributes:
        targets: classes, paths, or expressions behind `re:`.
        format: how weights are stored.
        bits: of a code.
        strategy: what shares a scale.
        group_size: columns that do, with strategy `group`.
    """

    targets: tuple[str, ...]
    format: str
    bits: int
    strategy: str
    group_size: int | None

    def names(self, path: str) -> bool:
        """Whether a target is the path, or an expression that finds it from its start."""
        return any(
            re.match(target[3:], path) if target.startswith("re:") else target == path
            for target in self.targets
        )


@dataclass(frozen=True)
class Stored:
    """A weight as a folder of chop stores it."""

    number_format: NumberFormat
    codes: Tensor
    scales: Tensor
    tensor_scale: Tensor | None = None


def is_one(config: Any) -> bool:
    """Whether a configuration of transformers is of such a folder."""
    settings = getattr(config, "quantization_config", None)
    method = settings.get("quant_method") if isinstance(settings, Mapping) else None
    return bool(method == METHOD)


def load(folder: Path, kind: Any = None, **settings: Any) -> nn.Module:
    """The model of a folder, its linear layers packed in formats of chop, in evaluation mode.

    Args:
        folder: local, of safetensors.
        kind: class of transformers to build. Default: the one that `config.json` names.
        settings: of its configuration, in the place of those of the folder.

    Raises:
        ConfigError: a scheme has no format here, and is named.
        CheckpointError: files are missing or broken, or do not fit what `config.json` says.
    """
    import transformers

    # Registers how transformers reads what is converted.
    from chop.ir.huggingface import quantizer as _quantizer  # noqa: F401

    with tempfile.TemporaryDirectory() as temporary:
        convert(folder, Path(temporary))
        config = transformers.AutoConfig.from_pretrained(temporary)
        kind = kind or getattr(transformers, (config.architectures or [""])[0], None)
        if kind is None:
            raise ConfigError(f"'{folder}': config.json names no architecture of transformers.")
        model: nn.Module = kind.from_pretrained(temporary, **settings).eval()
    return model


def convert(folder: Path, destination: Path) -> None:
    """Writes the same model as a folder of chop: its configuration and weights.

    Args:
        folder: of compressed-tensors.
        destination: exists.

    Raises:
        ConfigError, CheckpointError: as `load`.
    """
    from safetensors.torch import save_file

    config = _document(folder / "config.json")
    groups = parse_groups(config.get("quantization_config"), str(folder))
    tensors = _tensors_of(folder)
    paths = sorted({name.rpartition(".")[0] for name in tensors if name.endswith(".weight_scale")})
    modules, own = dict[str, Any](), dict[str, Tensor]()
    for path in paths:
        stored = _stored(path, tensors, _group_of(path, groups))
        for part in ("weight", *PARTS):
            tensors.pop(f"{path}.{part}", None)
        own |= {f"{path}.{CODES}": stored.codes, f"{path}.{SCALES}": stored.scales}
        if stored.tensor_scale is not None:
            own[f"{path}.{TENSOR_SCALE}"] = stored.tensor_scale
        modules[path] = {"weight": json.loads(stored.number_format.key), "packed": True}
    _refuse_others(tensors, folder)
    save_file(tensors | own, destination / "model.safetensors", metadata={"format": "pt"})
    settings = {"quant_method": "chop", "modules": modules}
    write_json(destination / "config.json", {**config, "quantization_config": settings})


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
    if weights.get("symmetric") is False or weights.get("actorder") is not None:
        raise ConfigError(
            f"{where}: expected symmetric weights in their order, got zero points or actorder."
        )
    stored = plain.get("format") or default
    if stored not in READERS:
        raise ConfigError(f"{where}: format '{stored}': {did_you_mean(str(stored), READERS)}")
    bits, size = weights.get("num_bits"), weights.get("group_size")
    if type(bits) is not int or not 2 <= bits <= 8 or not (size is None or type(size) is int):
        raise ConfigError(f"{where}: expected num_bits from 2 to 8, got {bits!r} and {size!r}.")
    targets = tuple(map(str, plain["targets"]))
    return Group(targets, stored, bits, str(weights.get("strategy")), size)


def _group_of(path: str, groups: Sequence[Group]) -> Group:
    """The group that names a module, or else the one that names a class."""
    found = [group for group in groups if group.names(path)]
    by_class = [g for g in groups if any("." not in t and ":" not in t for t in g.targets)]
    chosen = found or by_class
    if not chosen:
        raise ConfigError(f"{METHOD}: '{path}' has scales, and no group of config.json names it.")
    return chosen[0]


def _document(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"'{path}' cannot be read: {first_line(error)}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"'{path}': expected a JSON object, got {type(found).__name__}.")
    return found


def _tensors_of(folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"'{folder}' has no weights: expected *.safetensors.")
    found: dict[str, Tensor] = {}
    for file in files:
        try:
            found |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"'{file}' cannot be read: {first_line(error)}") from error
    return found


def _stored(path: str, tensors: Mapping[str, Tensor], group: Group) -> Stored:
    parts = {
        part: tensors[f"{path}.{part}"]
        for part in ("weight", *PARTS)
        if f"{path}.{part}" in tensors
    }
    wanted, read = READERS[group.format]
    missing = [part for part in wanted if part not in parts]
    if missing:
        raise CheckpointError(
            f"{METHOD}: '{path}' lacks {' and '.join(missing)} of {group.format}."
        )
    try:
        return read(parts, group)
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"{METHOD}: '{path}' does not fit {group.format} in {group.bits} bits: "
            f"{first_line(error)}"
        ) from error


def _integers(parts: Mapping[str, Tensor], group: Group) -> Stored:
    """k + 2^(bits - 1) one after the other in words, rows apart; scales by group, row or all."""
    packed, scale, bits = parts["weight_packed"], parts["weight_scale"], group.bits
    rows, columns = _shape(parts)
    per_row = -(-columns // WORD) * bits  # words of whole groups of 32 codes
    if packed.dtype != torch.int32 or packed.shape != (rows, -(-columns * bits // WORD)):
        raise ValueError(f"weight_packed is {packed.dtype} {tuple(packed.shape)}")
    words = nn.functional.pad(packed, (0, per_row - packed.size(1))).contiguous()
    codes = unpack_bits(words.view(torch.uint8).reshape(-1), bits, rows * per_row * WORD // bits)
    codes = codes.view(rows, -1)[:, :columns].long() ^ (1 << (bits - 1))  # two's complement
    number_format, scales = _integer_format(scale, group, rows, columns)
    return Stored(number_format, pack_bits(codes, bits), scales)


def _integer_format(
    scale: Tensor, group: Group, rows: int, columns: int
) -> tuple[NumberFormat, Tensor]:
    """A format with bfloat16 scales where they are such, or with float32 ones."""
    values = scale.reshape(-1).float()
    found: NumberFormat
    if group.strategy == "tensor":
        expected, found = 1, ScaleInteger(group.bits)
    elif group.strategy == "channel":
        expected, found = rows, ScaleInteger(group.bits, granularity="channel")
    elif group.strategy == "group" and group.group_size is not None and group.group_size > 0:
        expected = rows * -(-columns // group.group_size)
        found = ScaleInteger(group.bits, granularity="group", group_size=group.group_size)
        if torch.equal(values.bfloat16().float(), values):
            found = GroupInteger(group.bits, group.group_size)
    else:
        raise ValueError(f"the strategy is {group.strategy} of {group.group_size}")
    if values.numel() != expected or not scale.is_floating_point():
        raise ValueError(f"weight_scale is {scale.dtype} {tuple(scale.shape)}")
    if isinstance(found, GroupInteger):
        return found, pack_bits(to_bits(values), BITS)
    return found, values


def _shape(parts: Mapping[str, Tensor]) -> tuple[int, int]:
    shape = parts["weight_shape"].tolist()
    if len(shape) != 2 or min(shape) < 1:
        raise ValueError(f"weight_shape is {shape}")
    rows, columns = map(int, shape)
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
    if of_all.numel() != 1:
        raise ValueError(f"weight_global_scale is {tuple(of_all.shape)}")
    tensor_scale = (1 / of_all.float()).reshape(())
    return Stored(NVFP4(), codes.reshape(-1), scale.view(torch.uint8).reshape(-1), tensor_scale)


def _check_blocks(
    codes: Tensor, scale: Tensor, dtype: torch.dtype, columns: int, block: int
) -> None:
    expected = (codes.size(0), -(-columns // block))
    if codes.dtype != dtype or codes.ndim != 2 or scale.shape != expected:
        raise ValueError(f"its codes are {codes.dtype} {tuple(codes.shape)}, {tuple(scale.shape)}")
    if scale.dtype != torch.uint8:
        raise ValueError(f"weight_scale is {scale.dtype}")


Reader = Callable[[Mapping[str, Tensor], Group], Stored]
READERS: Mapping[str, tuple[tuple[str, ...], Reader]] = {
    INTEGERS: (("weight_packed", "weight_scale", "weight_shape"), _integers),
    MX4: (("weight_packed", "weight_scale"), _mxfp4),
    MX8: (("weight", "weight_scale"), _mxfp8),
    NV4: (("weight_packed", "weight_scale", "weight_global_scale"), _nvfp4),
}
"""By format of a folder: the tensors of a module, and what reads them."""
