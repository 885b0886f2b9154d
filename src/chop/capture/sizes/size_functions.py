"""Size arithmetic: computation, printing and tracing of symbolic sizes."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sympy
import torch
from sympy.logic.boolalg import BooleanAtom

from chop.private.symbolic_shapes import PythonPrinter, SymNode, size_functions

# Functions of `math` that torch supports on sizes.
_OPAQUE_NAMES = (
    *("sqrt", "exp", "log", "log2", "sin", "cos", "tan"),
    *("sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh"),
)
_OPAQUE: Mapping[str, type] = {
    name: getattr(size_functions, f"OpaqueUnaryFn_{name}") for name in _OPAQUE_NAMES
}

# Python function that computes each kind of size expression at run time, by sympy class.
COMPUTE: Mapping[type, Callable[..., Any]] = {
    sympy.Pow: operator.pow,
    sympy.Eq: operator.eq,
    sympy.Ne: operator.ne,
    sympy.Lt: operator.lt,
    sympy.Le: operator.le,
    sympy.Gt: operator.gt,
    sympy.Ge: operator.ge,
    sympy.Not: operator.not_,
    size_functions.FloorDiv: operator.floordiv,
    size_functions.CleanDiv: operator.floordiv,
    size_functions.Mod: operator.mod,
    size_functions.PythonMod: operator.mod,
    size_functions.IntTrueDiv: operator.truediv,
    size_functions.FloatTrueDiv: operator.truediv,
    size_functions.PowByNatural: operator.pow,
    size_functions.FloatPow: operator.pow,
    size_functions.ToFloat: float,
    size_functions.TruncToInt: int,
    size_functions.TruncToFloat: math.trunc,
    size_functions.FloorToInt: math.floor,
    size_functions.CeilToInt: math.ceil,
    size_functions.RoundToInt: round,
    size_functions.RoundDecimal: round,
    **{kind: getattr(math, name) for name, kind in _OPAQUE.items()},
}

PAIRWISE: Mapping[type, Callable[[Any, Any], Any]] = {
    sympy.Mul: operator.mul,
    size_functions.Max: max,
    size_functions.Min: min,
    sympy.And: operator.and_,
    sympy.Or: operator.or_,
}


_REGROUPED = ("add", "sub", "mul", "mod")

_COMPARISONS: Mapping[str, tuple[type, type]] = {
    "_eq": (sympy.Eq, sympy.Ne),
    "_ne": (sympy.Ne, sympy.Eq),
    "_lt": (sympy.Lt, sympy.Ge),
    "_ge": (sympy.Ge, sympy.Lt),
    "_gt": (sympy.Gt, sympy.Le),
    "_le": (sympy.Le, sympy.Gt),
}
"""Comparisons of sizes with their negations."""


class SizePrinter(PythonPrinter):
    """Printer of size expressions as Python that uses `math` and built-in functions only."""

    def _print_ToFloat(self, expr: sympy.Expr) -> str:
        return f"float({self._print(expr.args[0])})"

    def _print_TruncToInt(self, expr: sympy.Expr) -> str:
        return f"int({self._print(expr.args[0])})"

    def _print_Float(self, expr: sympy.Expr) -> str:
        return repr(float(expr))

    def _helper_sqrt(self, expr: sympy.Expr) -> str:
        return f"math.sqrt({self._print(expr)})"

    def _print_Function(self, expr: sympy.Expr) -> str:
        name = type(expr).__name__.removeprefix("OpaqueUnaryFn_")
        return f"math.{name}({', '.join(map(self._print, expr.args))})"


@contextlib.contextmanager
def size_arithmetic() -> Iterator[None]:
    """Extends arithmetic on sizes, and replaces the parts that a graph cannot repeat exactly.

    `math.sqrt`, `math.log` and similar functions keep sizes symbolic. Sums and products of floats
    that sympy would regroup, which rounds differently, become numbers. Tests that sympy decides for
    all positive sizes are recorded, since a size may be zero.
    """
    replaced: list[tuple[Any, str, Any]] = [(math, name, _on_sizes) for name in _OPAQUE_NAMES]
    replaced += [(SymNode, f"_{name}", _rounded_in_order) for name in _REGROUPED]
    replaced += [(SymNode, name, _record_comparison) for name in _COMPARISONS]
    replaced += [
        (kind, name, _as_python)
        for kind in (torch.SymInt, torch.SymFloat)
        for name in ("__floordiv__", "__rfloordiv__")
    ]
    originals = [getattr(owner, name) for owner, name, _ in replaced]
    try:
        for (owner, name, make), original in zip(replaced, originals, strict=True):
            setattr(owner, name, make(name, original))
        yield
    finally:
        for (owner, name, _), original in zip(replaced, originals, strict=True):
            setattr(owner, name, original)


def _on_sizes(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compute(x: Any, *base: Any) -> Any:
        if not isinstance(x, torch.SymInt | torch.SymFloat):
            return original(x, *base)
        node = x.node
        argument = node.expr if isinstance(x, torch.SymFloat) else size_functions.ToFloat(node.expr)
        hint = original(node.hint) if node.has_hint() else None
        value = node.shape_env.create_symfloatnode(_OPAQUE[name](argument), hint=hint)
        # As in the C implementation, a base divides the natural logarithm.
        return value / compute(*base) if base else value

    return compute


def _rounded_in_order(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compute(left: Any, right: Any) -> Any:
        has_floats = left.pytype is float or right.pytype is float
        if has_floats and _would_regroup(name, left.expr, right.expr):
            left, right = _as_number(left), _as_number(right)
        return original(left, right)

    return compute


def _record_comparison(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    relation, opposite = _COMPARISONS[name]

    @functools.wraps(original)
    def compute(left: Any, right: Any) -> Any:
        result = original(left, right)
        outcome = getattr(result, "expr", None)
        if isinstance(outcome, BooleanAtom):
            kind = relation if outcome else opposite
            left.shape_env.record_if_assumed(kind(left.expr, right.expr, evaluate=False))
        return result

    return compute


def _would_regroup(name: str, *terms: sympy.Expr) -> bool:
    """Returns whether sympy would regroup a float operation, which Python rounds first."""
    unknown = [term for term in terms if not term.is_number]
    sums = any(isinstance(term, sympy.Add) for term in unknown)
    products = any(isinstance(term, sympy.Mul) for term in unknown)
    if name == "_mod":
        return bool(unknown)
    return sums or (products and (name == "_mul" or len(unknown) > 1))


def _as_number(node: Any) -> Any:
    """Returns the current value of a float that depends on sizes, and adds a guard on it."""
    if node.expr.is_number or node.pytype is not float:
        return node
    expression, number = node.expr, node.guard_float("", 0)
    node.shape_env.keep(sympy.Eq(expression, number, evaluate=False))
    return node.wrap_float(number)


def _as_python(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns Python's own operation on floats where torch's differs for sizes (`a // b`)."""

    @functools.wraps(original)
    def compute(left: Any, right: Any) -> Any:
        if isinstance(left, torch.SymInt) and not isinstance(right, float | torch.SymFloat):
            return original(left, right)
        return getattr(float, name)(_float(left), _float(right))

    return compute


def _float(value: Any) -> float:
    if not isinstance(value, torch.SymInt | torch.SymFloat):
        return float(value)
    node = torch.sym_float(value).node
    return float(_as_number(node).expr)
