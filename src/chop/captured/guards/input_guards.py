"""Input guards on dtype, memory layout and order of keys, none of which is a node of the graph.

A branch on dtype or layout is that of the example, and a call warns where it may go another way. A
loop over a mapping is in the order of the example, and a call with another order is refused; so is
one with whole numbers for real ones where the model branches on that.
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
"""Functions and methods that tell whether the numbers of a tensor are real or complex."""
LAYOUT_METHODS = frozenset({"is_contiguous", "stride"})
"""Methods of tensors that tell their layout."""


class InputGuardWarning(UserWarning):
    """An input differs from the example in a dtype or memory layout that the model branches on."""


def contiguous(inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the inputs that are contiguous tensors."""
    return tuple(name for name, x in inputs.items() if _is_strided(x) and x.is_contiguous())


def check_input_guards(
    asked: Mapping[str, str],
    examples: Mapping[str, Any],
    contiguous: tuple[str, ...],
    given: Mapping[str, Any],
) -> None:
    """Warns where an input differs in a dtype or memory layout that the model branches on.

    Args:
        asked: the line (`file:line`) of the model that asked, by what it asked for.
        examples: a `TensorSpec` per input of the graph.
        contiguous: the inputs that were contiguous at capture.
        given: the inputs of the call by name.

    Raises:
        GuardError: the keys of one come in another order, or one is of another kind of numbers,
            and the model goes by it.
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
        # Of a tensor without a second row every layout is contiguous.
        if LAYOUT in asked and x.is_contiguous() != (name in contiguous) and x.numel() > 1:
            states = ("not contiguous", "contiguous")
            came = x.is_contiguous()
            _warn(name, LAYOUT, states[not came], states[came], asked[LAYOUT])


def backwards(value: Any) -> Any:
    """The same value with the keys of its mappings in the opposite order."""
    parts = tree_children(value)
    if parts is None:
        return value
    turned = {key: backwards(part) for key, part in parts.items()}
    if isinstance(value, Mapping) and not dataclasses.is_dataclass(value):
        turned = dict(reversed(turned.items()))
    return tree_rebuild(value, turned)


def has_several_keys(value: Any) -> bool:
    """Whether a value is, or holds, a mapping of two entries or more."""
    if isinstance(value, Mapping) and not dataclasses.is_dataclass(value) and len(value) > 1:
        return True
    return any(map(has_several_keys, (tree_children(value) or {}).values()))


def check_order(name: str, spec: Any, value: Any) -> None:
    """Raises GuardError where the keys of a mapping come in another order than in the example."""
    if isinstance(spec, Mapping):
        expected, came = list(spec), list(value)
        if expected != came:
            raise GuardError(
                f"captured for {name} with its keys in the order {', '.join(map(str, expected))}, "
                f"which the model goes by, got {', '.join(map(str, came))}; give them in that order"
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
            f"captured for {name} of {expected}, got {came}: the model goes by whether it has real "
            f"numbers, at {where}; capture the model again with such an example"
        )


def _is_strided(x: Any) -> bool:
    return isinstance(x, Tensor) and x.layout is torch.strided and not x.is_nested


def _warn(name: str, what: str, expected: str, came: str, where: str) -> None:
    warnings.warn(
        f"captured for {name} of {what} {expected}, got {came}: the model asks for the {what} of "
        f"a tensor at {where}, and the graph keeps what it did on the example; capture the model "
        "again with such an example",
        InputGuardWarning,
        stacklevel=4,
    )
