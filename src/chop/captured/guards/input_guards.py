"""Input guards on dtype, memory layout and key order, which are not nodes of the graph.

A branch on dtype or layout is fixed as in the example, and a call warns if it may take another
branch. A loop over a mapping has the order of the example, and calls with another order are
refused. Integers in place of floating-point numbers are refused if the model branches on that.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from chop.base.nested import tree_children, tree_rebuild
from chop.captured.specs import FieldsSpec, TensorSpec
from chop.errors import GuardError

DTYPE, LAYOUT, ORDER = "dtype", "memory layout", "order of keys"
KIND = "kind of numbers"
KIND_FUNCTIONS = frozenset({"is_floating_point", "is_complex"})
"""Functions and methods that return whether the numbers of a tensor are real or complex."""
LAYOUT_METHODS = frozenset({"is_contiguous", "stride"})
"""Tensor methods that return the memory layout."""


class InputGuardWarning(UserWarning):
    """Warns that an input differs in a dtype or layout that the model branches on."""


def contiguous(inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of the contiguous inputs."""
    return tuple(name for name, x in inputs.items() if _is_strided(x) and x.is_contiguous())


def check_input_guards(
    asked: Mapping[str, str],
    examples: Mapping[str, Any],
    contiguous: tuple[str, ...],
    given: Mapping[str, Any],
) -> None:
    """Warns if an input differs in a dtype or memory layout that the model branches on.

    Args:
        asked: line (`file:line`) of the model by queried property.
        examples: a `TensorSpec` per input of the graph.
        contiguous: inputs that were contiguous at capture.
        given: inputs of the call by name.

    Raises:
        GuardError: the model depends on key order or on the kind of numbers, and these differ.
    """
    for name, x in given.items():
        spec = examples.get(name)
        if ORDER in asked:
            check_order(name, spec, x)
        if not isinstance(spec, TensorSpec) or not _is_strided(x):
            continue
        if KIND in asked:
            _check_kind(name, spec.dtype, x.dtype, asked[KIND])
        if DTYPE in asked and x.dtype != spec.dtype:
            _warn(name, DTYPE, f"{spec.dtype}", f"{x.dtype}", asked[DTYPE])
        # A tensor with a single row is contiguous in any layout.
        if LAYOUT in asked and x.is_contiguous() != (name in contiguous) and x.numel() > 1:
            states = ("not contiguous", "contiguous")
            came = x.is_contiguous()
            _warn(name, LAYOUT, states[not came], states[came], asked[LAYOUT])


def reverse_keys(value: Any) -> Any:
    """Returns the value with the keys of its mappings in reverse order."""
    parts = tree_children(value)
    if parts is None:
        return value
    turned = {key: reverse_keys(part) for key, part in parts.items()}
    if isinstance(value, Mapping) and not dataclasses.is_dataclass(value):
        turned = dict(reversed(turned.items()))
    return tree_rebuild(value, turned)


def has_several_keys(value: Any) -> bool:
    """Returns whether a value is or contains a mapping of two entries or more."""
    if isinstance(value, Mapping) and not dataclasses.is_dataclass(value) and len(value) > 1:
        return True
    return any(map(has_several_keys, (tree_children(value) or {}).values()))


def check_order(name: str, spec: Any, value: Any) -> None:
    """Raises GuardError if the keys of a mapping come in another order than in the example."""
    if isinstance(spec, Mapping):
        expected, came = list(spec), list(value)
        if expected != came:
            raise GuardError(
                f"the graph was captured for {name} with keys in the order "
                f"{', '.join(map(str, expected))}, which the model depends on, got "
                f"{', '.join(map(str, came))}; pass them in that order"
            )
        parts = [(f"{name}[{key!r}]", spec[key], value[key]) for key in expected]
    elif isinstance(spec, tuple | list):
        parts = [(f"{name}[{i}]", part, value[i]) for i, part in enumerate(spec)]
    elif isinstance(spec, FieldsSpec):
        parts = [(f"{name}.{f}", part, getattr(value, f)) for f, part in spec.fields.items()]
    else:
        return
    for part in parts:
        check_order(*part)


def _check_kind(name: str, expected: torch.dtype, came: torch.dtype, where: str) -> None:
    kinds = [(x.is_floating_point, x.is_complex) for x in (expected, came)]
    if kinds[0] != kinds[1]:
        raise GuardError(
            f"the graph was captured for {name} of {expected}, got {came}: the model tests the "
            f"kind of numbers at {where}; capture the model again with such an example"
        )


def _is_strided(x: Any) -> bool:
    return isinstance(x, Tensor) and x.layout is torch.strided and not x.is_nested


def _warn(name: str, what: str, expected: str, came: str, where: str) -> None:
    warnings.warn(
        f"the graph was captured for {name} of {what} {expected}, got {came}: the model reads "
        f"the {what} of a tensor at {where}, and the graph keeps the branch of the example; "
        "capture the model again with such an example",
        InputGuardWarning,
        stacklevel=4,
    )
