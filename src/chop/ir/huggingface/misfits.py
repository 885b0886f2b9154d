"""Error messages for tensors in files that do not fit a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from chop.errors import CheckpointError, enumerate_names

NO_FLOATS = ("I", "U", "BOOL")
"""Prefixes of safetensors type names that are not floats."""


def other_shape(
    key: str, actual: Iterable[int], expected: Iterable[int], where: str
) -> CheckpointError:
    """Describes a tensor whose shape differs from the model's."""
    return CheckpointError(
        f"{where}: the weights cannot be read: '{key}' has the shape {[*actual]}, config.json has "
        f"{[*expected]}."
    )


def describe_missing(model: Any, needed: list[str], where: str) -> CheckpointError:
    """Describes tensors that a model needs and the files lack."""
    return CheckpointError(
        f"{where}: the weights lack {format_first(needed)}, which the {type(model).__name__} of "
        "its config.json needs."
    )


def describe_non_floats(name: str, kind: str, where: str) -> CheckpointError:
    """Describes integer or boolean tensors for a model that expects floats."""
    actual = "truth values" if kind == "BOOL" else "integers"
    return CheckpointError(
        f"{where}: '{name}' has {actual} ({kind}) without scales that define their values; "
        "expected floats."
    )


def format_first(names: list[str]) -> str:
    """Returns the first name and the number of the others."""
    return enumerate_names([f"'{name}'" for name in names], 1)
