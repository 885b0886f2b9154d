"""auto-round reader: folders of Intel's AutoRound as packed layers.

Source of the layout: auto-round 0.13, `auto_round/export/export_to_autoround`. The setting
`packing_format`, `backend` in older releases, selects the tensor names. They are those of GPTQ
or AWQ, of compressed-tensors for MXFP and NVFP4, or of auto-round. The layout of auto-round is that
of GPTQ with unchanged zero points and without `g_idx`. `extra_config` has the settings of single
layers.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from chop.errors import ConfigError
from chop.export.compressed_tensors.groups import CLASSES, Group
from chop.export.compressed_tensors.reader import read_groups
from chop.export.compressed_tensors.target import MX4, MX8, MX_BLOCK, NV4, NV_BLOCK
from chop.export.foreign.expressions import expression
from chop.export.foreign.reader import Read, Reader, read_coded
from chop.export.foreign.stored import Stored, parse_group_size
from chop.export.foreign.weight_files import document
from chop.export.gptq import awq_reader, reader
from chop.ir.huggingface.config_file import CONFIG

log = logging.getLogger(__name__)

METHODS = ("auto-round", "intel/auto-round")
OWN, GPTQ, AWQ, FLOATS = "auto_round", "gptq", "awq", "llm_compressor"
"""Packing of a folder, by a word of its `packing_format`."""
WIDTHS = (2, 3, 4, 8)
HALF_BITS = 16
"""Smallest width of floats."""
PLAIN = re.compile(r"[\w.-]+")
"""Keys of `extra_config` that are paths; others are regular expressions."""
MINIFLOATS: Mapping[tuple[str, int], tuple[str, int]] = {
    ("mx_fp", 4): (MX4, MX_BLOCK),
    ("mx_fp", 8): (MX8, MX_BLOCK),
    ("nv_fp", 4): (NV4, NV_BLOCK),
}
"""Format of compressed-tensors and group size, by type and bits."""


def read(folder: Path) -> Read:
    """Reads a folder.

    Raises:
        ConfigError: if chop has no format for its settings.
        CheckpointError: if files are missing or broken, or do not fit the settings.
    """
    config = document(folder / CONFIG)
    settings, where = config.get("quantization_config"), f"'{folder}'"
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{where}: expected settings of {METHODS[0]} in config.json.")
    if _packing(settings, where) == FLOATS:
        group = _minifloats(settings, where)
        if (bits := _input_bits(settings, where)) < HALF_BITS:
            log.warning(
                "%s: inputs of layers stay float; engines round them to %s bits.", folder, bits
            )
        return read_groups(folder, config, [group], cache_scheme=None)
    return read_coded(folder, _parse_schemes, reader.PARTS, (reader.ORDER,), _stored)


def _packing(settings: Mapping[str, Any], where: str) -> str:
    named = settings.get("packing_format") or settings.get("backend") or OWN
    words = re.split(r"[:_]", str(named).lower().replace("-", "_"))
    like_others = [x for x in (GPTQ, AWQ) if x in words]
    if like_others:
        return like_others[0]
    if FLOATS in str(named):
        return FLOATS
    if words[:2] == OWN.split("_") and "fp8" not in words:
        return OWN
    raise ConfigError(
        f"{where}: expected a packing_format of {METHODS[0]} with {OWN}, {GPTQ}, {AWQ} or "
        f"{FLOATS}, got {named!r:.40}."
    )


def _minifloats(settings: Mapping[str, Any], where: str) -> Group:
    kind, bits = str(settings.get("data_type")), settings.get("bits")
    # Types have suffixes for the rule of their scales, which codes do not depend on.
    chosen = [
        x for (name, width), x in MINIFLOATS.items() if kind.startswith(name) and width == bits
    ]
    if not chosen:
        raise ConfigError(
            f"{where}: expected mx_fp in 4 or 8 bits, or nv_fp in 4, got {kind:.40} in "
            f"{bits!r:.20}."
        )
    stored, size = chosen[0]
    return Group(
        *(CLASSES, (), stored, bits, "float", "group", size),  # type: ignore[arg-type]
        is_symmetric=True,
        inputs=None,
    )


@dataclass(frozen=True)
class _Schemes(reader.Schemes):
    """Storage schemes of a folder.

    Attributes:
        packing: word of its `packing_format`.
    """

    packing: str


def _parse_schemes(settings: Any, where: str) -> _Schemes:
    """Parses settings; see `read_coded`."""
    packing = _packing(settings, where)
    kind = str(settings.get("data_type", "int"))
    if not kind.startswith("int"):
        raise ConfigError(f"{where}: expected a data_type of int, got {kind:.40}.")
    if (bits := _input_bits(settings, where)) < HALF_BITS:
        raise ConfigError(f"{where}: expected float inputs, got act_bits {bits}.")
    added = 0 if packing == OWN else reader.FORMATS["gptq"]
    first = reader.Scheme(0, reader.GROUP, added, is_reordered=False)
    common = _scheme(settings, first, where)
    extra = settings.get("extra_config") or {}
    if not isinstance(extra, Mapping):
        raise ConfigError(f"{where}: expected settings by layer in 'extra_config'.")
    others = {}
    for key, plain in extra.items():
        if isinstance(plain, Mapping) and not _is_float(plain.get("bits")):
            text = f"{re.escape(key)}$" if PLAIN.fullmatch(key) else key
            others[expression(text, where)] = _scheme(plain, common, f"{where}, '{key:.80}'")
    return _Schemes(common, others, packing)


def _input_bits(settings: Mapping[str, Any], where: str) -> int:
    """Returns the width of rounded inputs; 16 or more for float ones."""
    bits = settings.get("act_bits", HALF_BITS)
    if bits is None:
        return HALF_BITS
    if type(bits) is not int:
        raise ConfigError(f"{where}: expected a whole number of act_bits, got {bits!r:.40}.")
    return bits


def _is_float(bits: Any) -> bool:
    """Returns True for the widths that auto-round writes for layers without codes."""
    return type(bits) is int and bits >= HALF_BITS


def _scheme(plain: Mapping[str, Any], common: reader.Scheme, where: str) -> reader.Scheme:
    bits = plain.get("bits", common.bits)
    group = parse_group_size(plain.get("group_size", common.group or -1), where)
    if type(bits) is not int or bits not in WIDTHS:
        raise ConfigError(f"{where}: expected bits of {WIDTHS}, got {bits!r}.")
    return replace(common, bits=bits, group=group)


def _stored(path: str, parts: Mapping[str, Tensor], schemes: _Schemes) -> Stored:
    if schemes.packing != AWQ:
        return reader.stored(path, parts, schemes)
    scheme = schemes.of(path)
    if scheme.bits != awq_reader.BITS:
        raise ConfigError(f"'{path}': expected {awq_reader.BITS} bits of AWQ, got {scheme.bits}.")
    return awq_reader.stored(path, parts, scheme.group)


READER = Reader(METHODS[0], read)
