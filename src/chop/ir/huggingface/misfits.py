"""Error messages for tensors of files that do not fit a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from chop.errors import CheckpointError, enumerate_names

NO_FLOATS = ("I", "U", "BOOL")
"""Beginnings of safetensors' names of types."""


def other_shape(
    key: str, actual: Iterable[int], expected: Iterable[int], where: str
) -> CheckpointError:
    """Describes a tensor of another size than the model's."""
    return CheckpointError(
        f"{where}: the weights cannot be read: '{key}' has the shape {[*actual]}, by config.json "
        f"{[*expected]}."
    )


def lacking(model: Any, needed: list[str], where: str) -> CheckpointError:
    """Describes files that lack tensors which a model needs."""
    return CheckpointError(
        f"{where}: the weights lack {name_first(needed)}, which the {type(model).__name__} of its "
        "config.json needs."
    )


def no_floats(name: str, kind: str, where: str) -> CheckpointError:
    """Describes a tensor of integers, or of truth values, where a model has floats."""
    actual = "truth values" if kind == "BOOL" else "integers"
    return CheckpointError(
        f"{where}: '{name}' holds {actual} ({kind}), and no scales say which numbers they stand "
        "for; expected floats."
    )


def name_first(names: list[str]) -> str:
    """The first name, and how many others there are."""
    return enumerate_names([f"'{name}'" for name in names], 1)
