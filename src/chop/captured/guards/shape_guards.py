"""Shape guards: conditions on input sizes under which a captured graph is valid."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from chop.errors import CaptureError


@dataclass(frozen=True)
class ShapeGuard:
    """A condition on input sizes under which a graph was recorded.

    Args:
        expression: Python over input names, such as `"x.shape[1] <= 14"`.
        where: `file:line` of the model that tested it; the name of the pass that fixed a size; ""
            for the capture itself.
    """

    expression: str
    where: str = ""


UNKNOWN_LINE = "an unknown line"
"""Place of a test outside of the model's files, as in code from a text."""
MAX_LENGTH = 100_000
MAX_BITS = 4096
"""Maximum number of bits of products and powers of integers; sizes have 63."""


def product(a: Any, b: Any) -> Any:
    """Returns `a * b`.

    Raises:
        OverflowError: an integer of more than `MAX_BITS` bits.
    """
    if isinstance(a, int) and isinstance(b, int) and a.bit_length() + b.bit_length() > MAX_BITS:
        raise OverflowError(f"a product of more than {MAX_BITS} bits")
    return a * b


def power(base: Any, exponent: Any) -> Any:
    """Returns `base**exponent`.

    Raises:
        OverflowError: an integer of more than `MAX_BITS` bits.
    """
    are_integers = isinstance(base, int) and isinstance(exponent, int)
    if are_integers and base.bit_length() * abs(exponent) > MAX_BITS:
        raise OverflowError(f"a power of more than {MAX_BITS} bits")
    return base**exponent


def _number(value: Any) -> Any:
    """Returns an input that is a number.

    Text, tensors and sequences are refused, since operators have other meanings for them.
    """
    if not isinstance(value, int | float | torch.SymInt | torch.SymFloat):
        raise TypeError(f"expected a number, got {type(value).__name__}")
    return value


def _rounded(value: Any, digits: int = 0) -> Any:
    if abs(digits) > MAX_BITS:
        raise OverflowError(f"rounded to {digits} digits")
    return round(value, digits) if digits else round(value)


_MATH = (
    *("floor", "ceil", "trunc", "sqrt", "log", "log2", "exp"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
)
_FUNCTIONS: Mapping[str, Any] = {
    "max": max,
    "min": min,
    "int": int,
    "abs": abs,
    "float": float,
    "round": _rounded,
    # Spelling of two of them in the conditions that torch prints.
    "torch.sym_float": float,
    "torch._sym_sqrt": math.sqrt,
    **{f"math.{name}": getattr(math, name) for name in _MATH},
}
_NUMBERS: Mapping[str, float] = {"math.inf": math.inf, "math.nan": math.nan}
_OPERATORS: Mapping[type[ast.operator], Any] = {ast.Mult: product, ast.Pow: power}
# Dotted names and names with a blank: no input can have such a name.
_NAMESPACE: dict[str, Any] = {
    **_FUNCTIONS,
    **_NUMBERS,
    **{f"checked {function.__name__}": function for function in (product, power, _number)},
    "__builtins__": {},
}
_SYNTAX = (
    *(ast.Expression, ast.BoolOp, ast.boolop, ast.UnaryOp, ast.unaryop, ast.Compare, ast.cmpop),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Div, ast.FloorDiv, ast.Mod),
    *(ast.BitAnd, ast.BitOr, ast.BitXor, ast.IfExp, ast.Load),
)


class _Arithmetic(ast.NodeTransformer):
    """Syntax-tree filter that accepts sizes and arithmetic, with overflow checks of growing
    numbers.

    Raises:
        SyntaxError: any other syntax.
    """

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, _SYNTAX) and not hasattr(self, f"visit_{type(node).__name__}"):
            raise SyntaxError(type(node).__name__)
        return super().visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if type(node.value) not in (int, float, bool):
            raise SyntaxError(repr(node.value))
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return _call("checked _number", node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Accepts sizes: `x.shape[0]`, `batch['mask'].shape[1]`."""
        of = node.value
        if not isinstance(of, ast.Attribute) or of.attr != "shape" or not _is_input(of.value):
            raise SyntaxError(ast.unparse(node))
        if not isinstance(ast.literal_eval(node.slice), int):
            raise SyntaxError(ast.unparse(node))
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return ast.Name(_single_name(_NUMBERS, node), ast.Load())

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if node.keywords:
            raise SyntaxError(ast.unparse(node))
        return _call(_single_name(_FUNCTIONS, node.func), *map(self.visit, node.args))

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        checked = _OPERATORS.get(type(node.op))
        if checked is None:
            return self.generic_visit(node)
        operands = self.visit(node.left), self.visit(node.right)
        return _call(f"checked {checked.__name__}", *operands)


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _single_name(known: Mapping[str, Any], node: ast.AST) -> str:
    name = ast.unparse(node)
    if name not in known:
        raise SyntaxError(name)
    return name


def _is_input(node: ast.AST) -> bool:
    """Returns whether an expression is an input or a part of one, such as `batch['mask']`."""
    while not isinstance(node, ast.Name):
        entry = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
        field = isinstance(node, ast.Attribute) and not node.attr.startswith("_")
        if not (entry or field):
            return False
        node = node.value  # type: ignore[attr-defined]
    return True


def compile_guard(guard: ShapeGuard) -> CodeType:
    """Compiles a condition after a check that it is arithmetic on shapes only.

    Operands are bounded, so that no condition takes long or much memory.

    Raises:
        CaptureError: the expression has other syntax (it may come from a file).
    """
    text = guard.expression
    try:
        if len(text) > MAX_LENGTH:
            raise SyntaxError(f"{len(text)} characters")
        tree = _Arithmetic().visit(ast.parse(text, mode="eval"))
        return compile(ast.fix_missing_locations(tree), "<shape guard>", "eval")
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        excerpt = text if len(text) <= 200 else f"{text[:200]}..."
        raise CaptureError(f"expected arithmetic on shapes, got {excerpt!r} ({error})") from None


def guard_holds(code: CodeType, given: Mapping[str, Any]) -> bool:
    """Returns whether the inputs, by name, meet a compiled condition."""
    try:
        return bool(eval(code, _NAMESPACE, given))
    except (ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError):
        return False


def violation_message(guard: ShapeGuard, given: Mapping[str, Any]) -> str:
    """Returns the error message for inputs that violate a condition."""
    shapes = ", ".join(
        f"{name}: {tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__}"
        for name, value in given.items()
        if name in guard.expression
    )
    if guard.where.endswith("_pass"):
        return (
            f"fixed to {guard.expression} by {guard.where}, got {shapes}; run the pass again with "
            "an example of that shape"
        )
    is_known = guard.where not in ("", UNKNOWN_LINE)
    reason = f"tested by the model at {guard.where}" if is_known else "fixed at capture"
    return (
        f"the graph was captured for {guard.expression} ({reason}), got {shapes}; capture the "
        "model again with "
        "an example of that shape, MaseGraph(model, dummy_in={...})"
    )
