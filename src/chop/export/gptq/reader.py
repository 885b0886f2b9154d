"""GPTQ reader: folders of AutoGPTQ, GPTQModel and `chop export --to gptq` as packed layers.

Source of the layout: GPTQModel 2.0. `qweight` int32 (inputs bits / 32, outputs) holds the codes of
a column from the low bits on. `qzeros` int32 (groups, outputs bits / 32) holds the zero points of a
row in the same way, minus one in format `gptq`. `scales` is (groups, outputs), and `g_idx` the
group of each input.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.errors import ConfigError, did_you_mean
from chop.export.foreign.expressions import expression, finds
from chop.export.foreign.reader import Read, Reader, read_coded
from chop.export.foreign.stored import (
    WORD,
    Stored,
    decoding,
    parse_group_size,
    stored_affine,
    words_unpacked,
)

METHOD = "gptq"
FORMATS = {"gptq": 1, "gptq_v2": 0}
"""Number to add to a stored zero point, by format."""
PARTS = ("qweight", "qzeros", "scales")
ORDER = "g_idx"
WIDTHS = (2, 3, 4, 8)
GROUP = 128
"""Default number of inputs per group."""


@dataclass(frozen=True)
class Scheme:
    """Storage scheme of a module.

    Attributes:
        bits: bits of a code.
        group: inputs that share a scale and a zero point; None for all.
        added: number added to a stored zero point.
        is_reordered: inputs may be permuted, as given by a tensor.
    """

    bits: int
    group: int | None
    added: int
    is_reordered: bool


@dataclass(frozen=True)
class Schemes:
    """Storage schemes of a folder.

    Attributes:
        common: default scheme.
        others: schemes by regular expression for paths.
    """

    common: Scheme
    others: Mapping[re.Pattern[str], Scheme]

    def of(self, path: str) -> Scheme:
        """Returns the first scheme with an expression that matches a path, or the default."""
        matches = (scheme for x, scheme in self.others.items() if finds(x, path))
        return next(matches, self.common)


def read(folder: Path) -> Read:
    """Reads a folder; see `read_coded`."""
    return read_coded(folder, _parse_schemes, PARTS, (ORDER,), stored)


def _parse_schemes(settings: Any, where: str) -> Schemes:
    """Parses the schemes of a `quantization_config`.

    Args:
        settings: `quantization_config` of `config.json`.
        where: folder, for messages.

    Raises:
        ConfigError: if the settings are malformed or not supported.
    """
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{where}: expected settings of {METHOD} in its quantization_config.")
    name = settings.get("checkpoint_format") or settings.get("format") or METHOD
    if not isinstance(name, str) or name not in FORMATS:
        raise ConfigError(f"{where}: checkpoint_format: {did_you_mean(str(name), FORMATS)}")
    if settings.get("adapter") is not None:
        raise ConfigError(f"{where}: adapters are not supported.")
    if "bits" not in settings:
        raise ConfigError(f"{where}: expected bits in its quantization_config.")
    common = _scheme(settings, Scheme(0, GROUP, FORMATS[name], is_reordered=False), where)
    dynamic = settings.get("dynamic") or {}
    if not isinstance(dynamic, Mapping):
        raise ConfigError(f"{where}: expected settings by expression in 'dynamic'.")
    others = {
        expression(key.removeprefix("+:"), where): _scheme(plain, common, f"{where}, '{key:.80}'")
        for key, plain in dynamic.items()
        if not key.startswith("-:")
    }
    return Schemes(common, others)


def _scheme(plain: Any, common: Scheme, where: str) -> Scheme:
    if not isinstance(plain, Mapping):
        raise ConfigError(f"{where}: expected settings, got {plain!r:.80}.")
    bits = plain.get("bits", common.bits)
    group = parse_group_size(plain.get("group_size", common.group or -1), where)
    if type(bits) is not int or bits not in WIDTHS:
        raise ConfigError(f"{where}: expected bits of {WIDTHS}, got {bits!r}.")
    is_reordered = bool(plain.get("desc_act", common.is_reordered))
    return replace(common, bits=bits, group=group, is_reordered=is_reordered)


def stored(path: str, parts: Mapping[str, Tensor], schemes: Schemes) -> Stored:
    """Returns the weight of a module in a chop format.

    Args:
        path: path of the module, for messages.
        parts: its tensors by name suffix.
        schemes: schemes of the folder.

    Raises:
        ConfigError: if inputs are permuted, or if no format has the zero points.
        CheckpointError: if tensors have wrong shapes or dtypes.
    """
    scheme = schemes.of(path)
    how = f"{scheme.bits} bits in groups of {scheme.group}"
    with decoding(f"{METHOD}: '{path}' does not fit {how}"):
        return _stored(path, parts, scheme)


def _stored(path: str, parts: Mapping[str, Tensor], scheme: Scheme) -> Stored:
    weight, bits = parts["qweight"], scheme.bits
    if weight.dtype != torch.int32 or weight.ndim != 2 or not weight.numel():
        raise ValueError(f"qweight is {weight.dtype} {tuple(weight.shape)}")
    if weight.size(0) * WORD % bits:
        raise ValueError(f"qweight has {weight.size(0)} words of {WORD} bits for a column")
    inputs, outputs = weight.size(0) * WORD // bits, weight.size(1)
    groups = -(-inputs // (scheme.group or inputs))
    expected = {"qzeros": (groups, -(-outputs * bits // WORD)), "scales": (groups, outputs)}
    for part, shape in expected.items():
        if parts[part].shape != shape:
            raise ValueError(f"{part} is {tuple(parts[part].shape)}, expected {shape}")
    if parts["qzeros"].dtype != torch.int32:
        raise ValueError(f"qzeros is {parts['qzeros'].dtype}")
    if scheme.is_reordered and ORDER not in parts:
        raise ConfigError(
            f"{METHOD}: '{path}' lacks {ORDER}, which defines the order of its inputs (desc_act)."
        )
    _check_order(path, parts.get(ORDER), inputs, min(scheme.group or inputs, inputs))
    codes = words_unpacked(weight.t(), bits, inputs)
    zeros = words_unpacked(parts["qzeros"], bits, outputs).t().double() + scheme.added
    if bool((zeros >= 2**bits).any()):
        raise ConfigError(
            f"{METHOD}: '{path}' stores a zero point of {2**bits - 1}, which engines read as 0 or "
            f"as {2**bits}; expected checkpoint_format 'gptq_v2'."
        )
    return stored_affine(codes, parts["scales"].t(), zeros, bits, scheme.group)


def _check_order(path: str, order: Tensor | None, inputs: int, group: int) -> None:
    """Raises ConfigError if groups do not consist of adjacent inputs."""
    if order is None:
        return
    if order.shape != (inputs,) or order.is_floating_point():
        raise ValueError(f"g_idx is {order.dtype} {tuple(order.shape)}")
    if not torch.equal(order.long(), torch.arange(inputs) // group):
        raise ConfigError(
            f"{METHOD}: '{path}' has reordered inputs (desc_act), which are not supported. "
            "Quantize the model with desc_act=False."
        )


READER = Reader(METHOD, read)
