"""Checks whether a model's files hold floats or codes of an unknown quantization tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from chop.distributed.weight_files import INDEX, WEIGHTS, stored_dtypes
from chop.errors import enumerate_names
from chop.ir.huggingface.misfits import NO_FLOATS, describe_non_floats
from chop.ir.huggingface.unread import MOST_NAMES

FLOAT8 = "F8"
"""Prefix of safetensors' names of 8-bit float types."""
Renamed = Callable[[Any, list[str]], Mapping[str, str]]
"""(model, names in files) -> names in the model."""


def check_numbers(model: Any, folder: Path, renamed: Renamed, where: str) -> list[str]:
    """Returns warnings about weights stored as 8-bit floats.

    Args:
        model: Hugging Face model, with weights or on the meta device.
        folder: folder with safetensors weights; other kinds of weights are ignored.
        renamed: names of tensors in files -> names in the model.
        where: location of the files, for messages.

    Raises:
        CheckpointError: if files have integers or booleans in place of float weights.
    """
    if not any((folder / name).is_file() for name in (WEIGHTS, INDEX)):
        return []
    coded = {x: d for x, d in stored_dtypes(folder).items() if d.startswith((FLOAT8, *NO_FLOATS))}
    if not coded:
        return []
    floats = {name for name, x in model.state_dict().items() if x.is_floating_point()}
    names = [name for name, own in renamed(model, sorted(coded)).items() if own in floats]
    integers = [name for name in names if coded[name].startswith(NO_FLOATS)]
    if integers:
        raise describe_non_floats(integers[0], coded[integers[0]], where)
    listed = enumerate_names(names, MOST_NAMES)
    return [f"8-bit floats without scales, used unscaled: {listed}"] if names else []
