"""bitsandbytes reader: folders of 4-bit weights (NF4 and FP4) as packed layers, code by code.

Source of the layout: `QuantState` of bitsandbytes 0.50. The codes of a weight are in its order, the
first of two in the high bits of a byte. `weight.absmax` has a float32 scale per block of codes,
which may span rows. With double quantization it has bytes: indices of `weight.nested_quant_map`,
times `weight.nested_absmax` per block of them, plus an offset. `weight.quant_state.bitsandbytes__*`
is a JSON document with sizes and the offset.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.export.foreign.reader import Read, Reader, read_coded
from chop.export.foreign.stored import Stored, checked_scales, decoding
from chop.formats import NF4
from chop.formats.nf4 import NESTED_GROUP, TABLES, nested_table, pack_nested
from chop.formats.packing import pack_bits

METHOD = "bitsandbytes"
ABSMAX, MAP, NESTED, NESTED_MAP = (
    f"weight.{x}" for x in ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
)
STATE = f"weight.quant_state.{METHOD}__"
STATES = tuple(STATE + kind for kind in TABLES)
SIDES = (1, 2**20)
"""Smallest and largest number of codes in a block."""


def is_supported(settings: Mapping[str, Any]) -> bool:
    """Returns True for 4-bit weights; transformers reads 8-bit ones with bitsandbytes itself."""
    return not (settings.get("load_in_8bit") or settings.get("_load_in_8bit"))


def read(folder: Path) -> Read:
    """Reads a folder; see `read_coded`."""
    optional = (NESTED, NESTED_MAP, *STATES)
    return read_coded(folder, _check_settings, (ABSMAX, "weight", MAP), optional, stored)


def _check_settings(settings: Any, where: str) -> None:
    if not isinstance(settings, Mapping) or not is_supported(settings):
        raise ConfigError(f"{where}: expected 4-bit settings of {METHOD} in config.json.")


def stored(path: str, parts: Mapping[str, Tensor], settings: None = None) -> Stored:
    """Returns the weight of a module in a chop format.

    Args:
        path: path of the module, for messages.
        parts: its tensors by name suffix.
        settings: not used: each weight has its own.

    Raises:
        ConfigError: if the weight has an unknown table.
        CheckpointError: if tensors have wrong shapes or dtypes.
    """
    with decoding(f"{METHOD}: '{path}' does not fit its quant_state"):
        return _stored(path, parts)


def _stored(path: str, parts: Mapping[str, Tensor]) -> Stored:
    state = _state(parts)
    kind, sides = state.get("quant_type"), state.get("shape")
    if kind not in [*TABLES]:  # which need not be hashable
        raise ConfigError(f"{METHOD}: '{path}': expected one of {[*TABLES]}, got {kind!r:.40}.")
    if not torch.equal(parts[MAP].float(), torch.tensor(TABLES[kind])):
        raise ConfigError(f"{METHOD}: '{path}': its quant_map is not the table of '{kind}'.")
    if not isinstance(sides, list) or len(sides) != 2:
        raise ConfigError(f"{METHOD}: '{path}': expected a matrix, got the shape {sides!r:.40}.")
    rows, columns = (_size(side, "shape") for side in sides)
    block, count = _size(state.get("blocksize"), "blocksize"), rows * columns
    packed = parts["weight"].contiguous().view(torch.uint8).view(-1)
    if packed.numel() != -(-count // 2):
        raise ValueError(f"its weight has {packed.numel()} bytes for {count} codes")
    codes = pack_bits(torch.stack([packed >> 4, packed & 15], 1).view(-1)[:count], 4)
    scales, nested = _scales(parts, state, -(-count // block))
    # A block that spans rows becomes groups of the largest size that divides both.
    span = columns if block % columns == 0 else math.gcd(block, columns)
    if span != block:
        first = torch.arange(count // span) * span // block
        scales, nested = scales[first], None
    number_format = NF4(span, nested=nested is not None, table=kind)
    final = scales if nested is None else nested
    return Stored(number_format, codes, final, shape=(rows, columns))


def _state(parts: Mapping[str, Tensor]) -> dict[str, Any]:
    """Returns the JSON document of a weight."""
    documents = [parts[name] for name in STATES if name in parts]
    if len(documents) != 1:
        raise ValueError(f"there are {len(documents)} tensors {STATE}* instead of one")
    if documents[0].dtype != torch.uint8:
        raise ValueError(f"its quant_state is {documents[0].dtype}")
    state = json.loads(bytes(documents[0].view(-1).tolist()))
    if not isinstance(state, dict):
        raise ValueError("its quant_state is no JSON object")
    return state


def _size(value: Any, name: str) -> int:
    least, most = SIDES
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is {value!r:.40}")
    return value


def _scales(
    parts: Mapping[str, Tensor], state: Mapping[str, Any], count: int
) -> tuple[Tensor, Tensor | None]:
    """Returns the float32 scales of all blocks, and their nested bytes if chop has them."""
    absmax = parts[ABSMAX].reshape(-1)
    if absmax.numel() != count:
        raise ValueError(f"there are {absmax.numel()} scales instead of {count}")
    if absmax.is_floating_point():
        return checked_scales(absmax), None
    if NESTED not in parts or NESTED_MAP not in parts or absmax.dtype != torch.uint8:
        raise ValueError(f"{ABSMAX} is {absmax.dtype}, without {NESTED} and {NESTED_MAP}")
    size, mean = (
        _size(state.get("nested_blocksize"), "nested_blocksize"),
        state.get("nested_offset"),
    )
    nested, table = checked_scales(parts[NESTED]), checked_scales(parts[NESTED_MAP])
    if nested.numel() != -(-count // size) or type(mean) is not float:
        raise ValueError(f"there are {nested.numel()} nested scales, offset {mean!r:.40}")
    if table.numel() != 2**8:
        raise ValueError(f"{NESTED_MAP} has {table.numel()} numbers")
    offset = torch.tensor(mean)
    products = table[absmax.int()] * nested.repeat_interleave(size)[:count]
    scales = checked_scales(products + offset)
    is_known = size == NESTED_GROUP and torch.equal(table, torch.tensor(nested_table()))
    return scales, pack_nested(absmax, nested, offset) if is_known else None


READER = Reader(METHOD, read)
