"""GPTQ reader: folders of AutoGPTQ, GPTQModel and `chop export --to gptq` as packed layers.

Source of the layout: GPTQModel 2.0, `qweight` int32 (inputs bits / 32, outputs), codes of a column
one after the other from the low bits on; `qzeros` int32 (groups, outputs bits / 32), zero points of
a row likewise, less one in format `gptq`; `scales` (groups, outputs); `g_idx`, the group of each
input.
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
"""What is to be added to a stored zero point."""
PARTS = ("qweight", "qzeros", "scales")
ORDER = "g_idx"
WIDTHS = (2, 3, 4, 8)
GROUP = 128
"""Inputs of a group, where settings do not say."""


@dataclass(frozen=True)
class Scheme:
    """How a module is stored.

    Attributes:
        bits: of a code.
        group: inputs that share a scale and a zero point; None: all.
        added: to a stored zero point.
        is_reordered: inputs may be in an order of their own, which a tensor says.
    """

    bits: int
    group: int | None
    added: int
    is_reordered: bool


@dataclass(frozen=True)
class Schemes:
    """Schemes of a folder.

    Attributes:
        common: of modules that nothing else is said of.
        others: by an expression for their paths.
    """

    common: Scheme
    others: Mapping[re.Pattern[str], Scheme]

    def of(self, path: str) -> Scheme:
        """The first one whose expression finds a path, or the common one."""
        found = (scheme for x, scheme in self.others.items() if finds(x, path))
        return next(found, self.common)


def read(folder: Path) -> Read:
    """What a folder holds; see `read_coded`."""
    return read_coded(folder, _parse_schemes, PARTS, (ORDER,), stored)


def _parse_schemes(settings: Any, where: str) -> Schemes:
    """The schemes of a `quantization_config`.

    Args:
        settings: of `config.json`.
        where: the folder, for messages.

    Raises:
        ConfigError: it is none, or has something without a format here.
    """
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{where}: expected settings of {METHOD} in its quantization_config.")
    name = settings.get("checkpoint_format") or settings.get("format") or METHOD
    if not isinstance(name, str) or name not in FORMATS:
        raise ConfigError(f"{where}: checkpoint_format: {did_you_mean(str(name), FORMATS)}")
    if settings.get("adapter") is not None:
        raise ConfigError(f"{where}: expected weights alone, got an adapter beside them.")
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
    """The weight of a module in a format of chop.

    Args:
        path: of the module, for messages.
        parts: its tensors by the end of their names.
        schemes: of the folder.

    Raises:
        ConfigError: its inputs are in another order, or its zero points have no format.
        CheckpointError: tensors have other shapes or types.
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
            f"{METHOD}: '{path}' lacks {ORDER}, its inputs may be in another order (desc_act)."
        )
    _check_order(path, parts.get(ORDER), inputs, min(scheme.group or inputs, inputs))
    codes = words_unpacked(weight.t(), bits, inputs)
    zeros = words_unpacked(parts["qzeros"], bits, outputs).t().double() + scheme.added
    if bool((zeros >= 2**bits).any()):
        raise ConfigError(
            f"{METHOD}: '{path}' has a stored zero point of {2**bits - 1}, which some engines read "
            f"as 0 and others as {2**bits}; expected checkpoint_format 'gptq_v2'."
        )
    return stored_affine(codes, parts["scales"].t(), zeros, bits, scheme.group)


def _check_order(path: str, order: Tensor | None, inputs: int, group: int) -> None:
    """Raises ConfigError where groups are not of neighbors."""
    if order is None:
        return
    if order.shape != (inputs,) or order.is_floating_point():
        raise ValueError(f"g_idx is {order.dtype} {tuple(order.shape)}")
    if not torch.equal(order.long(), torch.arange(inputs) // group):
        raise ConfigError(
            f"{METHOD}: '{path}' has its inputs in another order (desc_act): expected groups of "
            "neighbors, as desc_act=False makes."
        )


READER = Reader(METHOD, read)
