"""AWQ reader: folders of AutoAWQ in version `gemm` as packed layers.

Source of the layout: AutoAWQ 0.2, `qweight` int32 (inputs, outputs / 8), `qzeros` int32 (groups,
outputs / 8), both with the codes of eight outputs in the order of `ORDER` from the low bits on, and
`scales` (groups, outputs).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.export.foreign.reader import Read, Reader, read_coded
from chop.export.foreign.stored import Stored, decoding, parse_group_size, stored_affine

METHOD, VERSION = "awq", "gemm"
VERSION_KEYS = ("version", "format", "checkpoint_format")
"""Version keys of AutoAWQ, transformers and GPTQModel."""
BITS, PER_WORD = 4, 8
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Output index of each code in a word."""
PARTS = ("qweight", "qzeros", "scales")


def read(folder: Path) -> Read:
    """Reads a folder; see `read_coded`."""
    return read_coded(folder, _parse_group, PARTS, (), stored)


def _parse_group(settings: Any, where: str) -> int | None:
    """Returns the inputs that share a scale and a zero point; None for all.

    Args:
        settings: `quantization_config`.
        where: folder, for messages.

    Raises:
        ConfigError: if the settings are malformed or not supported.
    """
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{where}: expected settings of {METHOD} in its quantization_config.")
    bits = settings.get("bits", settings.get("w_bit", BITS))
    for key in VERSION_KEYS:
        version = str(settings.get(key) or VERSION).lower()
        if version != VERSION:
            raise ConfigError(
                f"{where}: expected {key} '{VERSION}' of {METHOD}, got '{version:.40}'."
            )
    if bits != BITS or type(bits) is not int:
        raise ConfigError(f"{where}: expected bits of {BITS}, got {bits!r}.")
    group = settings.get("group_size", settings.get("q_group_size", 128))
    return parse_group_size(group, where)


def stored(path: str, parts: Mapping[str, Tensor], group: int | None) -> Stored:
    """Returns the weight of a module in a chop format.

    Args:
        path: path of the module, for messages.
        parts: its tensors by name suffix.
        group: inputs that share a scale and a zero point; None for all.

    Raises:
        CheckpointError: if tensors have wrong shapes or dtypes.
    """
    with decoding(f"{METHOD}: '{path}' does not fit {BITS} bits in groups of {group}"):
        return _stored(parts, group)


def _stored(parts: Mapping[str, Tensor], group: int | None) -> Stored:
    weight, zeros = parts["qweight"], parts["qzeros"]
    for part in ("qweight", "qzeros"):
        if parts[part].dtype != torch.int32 or parts[part].ndim != 2 or not parts[part].numel():
            raise ValueError(f"{part} is {parts[part].dtype} {tuple(parts[part].shape)}")
    inputs, outputs = weight.size(0), weight.size(1) * PER_WORD
    groups = -(-inputs // (group or inputs))
    if zeros.shape != (groups, weight.size(1)):
        raise ValueError(f"qzeros is {tuple(zeros.shape)}, expected {(groups, weight.size(1))}")
    if parts["scales"].shape != (groups, outputs):
        raise ValueError(f"scales is {tuple(parts['scales'].shape)}, expected {(groups, outputs)}")
    codes = unpacked(weight).t().contiguous()
    return stored_affine(codes, parts["scales"].t(), unpacked(zeros).t().double(), BITS, group)


def unpacked(words: Tensor) -> Tensor:
    """Unpacks words to codes in the order of outputs, uint8 (rows, outputs).

    Args:
        words: int32 (rows, outputs / 8).
    """
    in_bytes = words.contiguous().view(torch.uint8)
    places = torch.stack([in_bytes & 15, in_bytes >> BITS], -1).view(len(words), -1, PER_WORD)
    at = [ORDER.index(output) for output in range(PER_WORD)]
    return places[..., at].reshape(len(words), -1)


READER = Reader(METHOD, read)
