"""Checks whether a model's files hold floats or codes of an unknown quantization tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from chop.distributed.weight_files import INDEX, WEIGHTS, stored_dtypes
from chop.errors import enumerate_names
from chop.ir.huggingface.misfits import NO_FLOATS, no_floats
from chop.ir.huggingface.unread import MOST_NAMES

FLOAT8 = "F8"
"""Beginning of safetensors' names of types."""
Renamed = Callable[[Any, list[str]], Mapping[str, str]]
"""(model, names in files) -> the model's names."""


def check_numbers(model: Any, folder: Path, renamed: Renamed, where: str) -> list[str]:
    """Sentences on weights in floats of 8 bits, which the caller is to warn of.

    Args:
        model: model of transformers, with weights or on the meta device.
        folder: with weights in safetensors, or others, which are not looked at.
        renamed: names of tensors in files -> names in the model.
        where: location of the files, for messages.

    Raises:
        CheckpointError: integers or truth values are there for weights of floats.
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
        raise no_floats(integers[0], coded[integers[0]], where)
    shown = enumerate_names(names, MOST_NAMES)
    return [f"floats of 8 bits without scales, taken as they are: {shown}"] if names else []
