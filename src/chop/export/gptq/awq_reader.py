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
"""Of AutoAWQ, transformers and GPTQModel."""
BITS, PER_WORD = 4, 8
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output whose code each place of a word has."""
PARTS = ("qweight", "qzeros", "scales")


def read(folder: Path) -> Read:
    """What a folder holds; see `read_coded`."""
    return read_coded(folder, _parse_group, PARTS, (), stored)


def _parse_group(settings: Any, where: str) -> int | None:
    """Inputs that share a scale and a zero point; None: all.

    Args:
        settings: `quantization_config`.
        where: the folder, for messages.

    Raises:
        ConfigError: it is none, or has something without a format here.
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
    """The weight of a module in a format of chop.

    Args:
        path: of the module, for messages.
        parts: its tensors by the end of their names.
        group: inputs that share a scale and a zero point; None: all.

    Raises:
        CheckpointError: tensors have other shapes or types.
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
    """uint8 (rows, outputs), the codes of words in the order of outputs.

    Args:
        words: int32 (rows, outputs / 8).
    """
    of_bytes = words.contiguous().view(torch.uint8)
    places = torch.stack([of_bytes & 15, of_bytes >> BITS], -1).view(len(words), -1, PER_WORD)
    at = [ORDER.index(output) for output in range(PER_WORD)]
    return places[..., at].reshape(len(words), -1)


READER = Reader(METHOD, read)
