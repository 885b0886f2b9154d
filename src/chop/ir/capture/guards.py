"""The conditions on input sizes that a captured graph holds under."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

from torch import Tensor

from chop.errors import CaptureError


@dataclass(frozen=True)
class ShapeGuard:
    """A condition on input sizes that a captured graph was recorded under.

    Args:
        expression: Python over input names, such as `"x.shape[1] <= 14"`.
        where: `file:line` of the model that tested it; "" where the capture fixed a size.
    """

    expression: str
    where: str = ""


_GUARD_NAMES: Mapping[str, Any] = {
    "math": math,
    "max": max,
    "min": min,
    "int": int,
    "abs": abs,
    "float": float,
    "round": round,
    "__builtins__": {},
}

_GUARD_SYNTAX = (
    ast.Expression,
    ast.BoolOp,
    ast.And,
    ast.Or,
    ast.UnaryOp,
    ast.Not,
    ast.USub,
    ast.Compare,
    ast.cmpop,
    ast.BinOp,
    ast.operator,
    ast.Constant,
    ast.Name,
    ast.Load,
    ast.Subscript,
    ast.Call,
    ast.Attribute,
    ast.IfExp,
)


def compile_guard(guard: ShapeGuard) -> CodeType:
    """The condition as code, after a check that it is arithmetic on shapes and nothing else.

    Raises:
        CaptureError: the expression does anything else (it may come from a file).
    """
    tree = ast.parse(guard.expression, mode="eval")
    for part in ast.walk(tree):
        harmless = isinstance(part, _GUARD_SYNTAX)
        if isinstance(part, ast.Attribute):
            of_math = isinstance(part.value, ast.Name) and part.value.id == "math"
            harmless = of_math or part.attr == "shape"
        if isinstance(part, ast.Call):
            harmless = isinstance(part.func, ast.Name) and part.func.id in _GUARD_NAMES
            harmless = harmless or isinstance(part.func, ast.Attribute)
        if not harmless:
            raise CaptureError(f"expected arithmetic on shapes, got {guard.expression!r}")
    return compile(tree, "<shape guard>", "eval")


def holds(code: CodeType, given: Mapping[str, Any]) -> bool:
    """Whether the inputs, by name, meet a compiled condition."""
    try:
        return bool(eval(code, {**_GUARD_NAMES, **given}))
    except (AttributeError, IndexError, KeyError, NameError, TypeError):
        return False


def refusal(guard: ShapeGuard, given: Mapping[str, Any]) -> str:
    """What to tell a user whose inputs do not meet a condition."""
    shapes = ", ".join(
        f"{name}: {tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__}"
        for name, value in given.items()
        if name in guard.expression
    )
    reason = f"tested by the model at {guard.where}" if guard.where else "fixed at capture"
    return (
        f"captured for {guard.expression} ({reason}), got {shapes}; capture the model again with "
        "an example of that shape, MaseGraph(model, dummy_in={...})"
    )
