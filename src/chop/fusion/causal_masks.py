"""Recognition of causal masks, which hide elements above the diagonal, at any size."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from chop.fusion.matching import SURE_TO_HIDE, argument, get_result, is_number, operation
from chop.ir.dotted import deepgetattr
from chop.ir.graph import MaseGraph

Triangle = Literal["lower", "upper"]
"""Location of true elements: on and below the diagonal, or strictly above it."""

OPPOSITE: dict[Triangle | None, Triangle | None] = {"lower": "upper", "upper": "lower", None: None}
WHOLE = slice(None)


def causal(mg: MaseGraph, booleans: fx.Node, is_allowed: bool) -> bool:
    """Returns true if the true booleans (the false ones without `is_allowed`) are a causal mask's.

    Buffers with a triangle are assumed to be constant.
    """
    return triangle(mg, booleans) == ("lower" if is_allowed else "upper")


def causal_when_added(mg: MaseGraph, numbers: fx.Node) -> bool:
    """Returns true for zeros with -inf, or at most `SURE_TO_HIDE`, strictly above the diagonal."""
    if operation(mg, numbers) in ("getitem", "get_attr"):
        square = _sliced_buffer(mg, numbers)
        if square is None:
            return False
        lower = torch.ones_like(square, dtype=torch.bool).tril()
        return torch.equal(square <= SURE_TO_HIDE, ~lower) and not square[lower].any()
    if operation(mg, numbers) != "triu" or argument(numbers, 1, "diagonal", 0) != 1:
        return False
    filled: Any = argument(numbers, 0, "input")
    if not _is_square(mg, filled, "full"):
        return False
    fill = argument(filled, 1, "fill_value")
    return is_number(fill) and fill <= SURE_TO_HIDE


def triangle(mg: MaseGraph, node: Any) -> Triangle | None:
    """Returns the triangle of a square that is true; None if neither or unknown."""
    name = operation(mg, node)
    if not name:
        return None
    source, other = argument(node, 0, "input"), argument(node, 1, "other")
    if name in ("invert", "logical_not", "__invert__") or (name == "eq" and other == 0):
        return OPPOSITE[triangle(mg, source)]
    keeps_values = mg.operator(node).layout in ("view", "cast") or name == "bool"
    if keeps_values or (name == "ne" and other == 0):
        # A view that cuts the rows otherwise moves the diagonal.
        same_rows = get_result(node).shape[-2:] == get_result(source).shape[-2:]
        return triangle(mg, source) if same_rows else None
    diagonal = argument(node, 1, "diagonal", 0)
    if name == "tril" and diagonal == 0 and _is_square(mg, source, "ones"):
        return "lower"
    if name == "triu" and diagonal == 1 and _is_square(mg, source, "ones"):
        return "upper"
    if name in ("getitem", "get_attr"):
        return _get_triangle(_sliced_buffer(mg, node))
    return None


def _is_square(mg: MaseGraph, node: Any, name: str) -> bool:
    """Returns true for `ones(n, n)` or `full((n, n), ...)`."""
    if operation(mg, node) != name:
        return False
    first = argument(node, 0, "size")
    sizes = first if isinstance(first, tuple | list) else node.args[:2]
    return len(sizes) == 2 and sizes[0] == sizes[1]


def _sliced_buffer(mg: MaseGraph, node: Any) -> Tensor | None:
    """Returns the square of `buffer[..., :n, :n]`, or of a whole buffer, on the last two axes."""
    if operation(mg, node) == "getitem":
        index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
        *leading, rows, columns = index if len(index) > 1 else (*index, WHOLE)
        from_start = all(isinstance(i, slice) and i.start in (None, 0) for i in (rows, columns))
        if not from_start or rows != columns or any(i not in (None, WHOLE, ...) for i in leading):
            return None
        node = node.args[0]
    if operation(mg, node) != "get_attr":
        return None
    value = deepgetattr(mg.model, str(node.target))
    if isinstance(value, nn.Parameter) or value.dim() < 2 or value.shape[:-2].numel() != 1:
        return None
    square = value.view(value.shape[-2:])
    return square if square.size(0) == square.size(1) else None


def _get_triangle(square: Tensor | None) -> Triangle | None:
    if square is None:
        return None
    ones = torch.ones_like(square, dtype=torch.bool)
    if torch.equal(square != 0, ones.tril()):
        return "lower"
    return "upper" if torch.equal(square != 0, ones.triu(1)) else None
