"""Values of attentions: the linear layer that computes them, and the one that reads their sums.

Attention sums values over tokens, separately in each head. If values are rotated within each head,
the sums are rotated as well, and the next linear layer compensates.

Source: QuaRot, Ashkboos et al. 2024, arXiv:2404.00456, section 4, stage 1d; R2 of SpinQuant, Liu et
al. 2024, arXiv:2405.16406, section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from chop.ir.graph import MaseGraph
from chop.ir.ops import Kind
from chop.ir.ops import dimensions as d
from chop.quantization.rotation.stream import (
    find_input,
    is_linear,
    keeps_last_axis,
    reads_no_number,
    result_shape,
)


@dataclass(frozen=True)
class Values:
    """Values of one attention.

    Attributes:
        maker: linear layer that computes them.
        reader: linear layer that reads their sums.
        head_size: channels per head.
    """

    maker: fx.Node
    reader: fx.Node
    head_size: int


def find_values(mg: MaseGraph, reader: fx.Node) -> Values | str:
    """Returns the values whose sums a linear layer reads, or the reason that they must stay."""
    path: list[fx.Node] = [reader]
    value = find_input(reader)
    while isinstance(value, fx.Node) and _get_values(mg, value) is None:
        path.append(value)
        value = _before(mg, value)
    if not isinstance(value, fx.Node):
        return "it does not read an attention"
    product, value = value, _get_values(mg, value)
    assert value is not None
    path.append(product)
    size = result_shape(value)[-1]
    while not is_linear(mg, value):
        path.append(value)
        before = _before(mg, value)
        if before is None:
            return f"its values go through '{value.name}'"
        value = before
    for node in (*path[1:], value):
        if result_shape(node)[-1:] and result_shape(node)[-1] % size:
            return f"'{node.name}' splits the channels of a head"
        others = [user for user in _readers(mg, node) if user not in path]
        if others:
            return f"'{others[0].name}' also reads the values"
    return Values(value, reader, size)


def _readers(mg: MaseGraph, node: fx.Node) -> list[fx.Node]:
    """Returns the readers of a value, directly or through a cache."""
    readers: list[fx.Node] = []
    for user in node.users:
        if mg.operator(user).follow is d.cached:
            position = user.args.index(node) - 1
            readers += [x for x in user.users if x.args[1:] == (position,)]
        elif not reads_no_number(mg, user, node):
            readers.append(user)
    return readers


def _get_values(mg: MaseGraph, node: fx.Node) -> fx.Node | None:
    """Returns the values that an attention, or a product with its weights, sums, or None."""
    row = mg.operator(node)
    if row.follow is d.attention:
        value = node.args[2] if len(node.args) > 2 else node.kwargs.get("value")
        return value if isinstance(value, fx.Node) else None
    is_product = row.kind is Kind.PRODUCT and row.weight is None
    is_product &= "weight" in row.arguments.values() and len(node.args) == 2
    given = node.args[1] if is_product else None
    return given if isinstance(given, fx.Node) else None


def _before(mg: MaseGraph, node: fx.Node) -> fx.Node | None:
    """Returns the source of a node that only moves, casts, repeats or caches, or None."""
    row = mg.operator(node)
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node):
        return None
    if mg.operator(source).follow is d.cached:
        position = node.args[1]
        given = source.args[1 + position] if isinstance(position, int) else None
        return given if isinstance(given, fx.Node) else None
    if row.layout in ("view", "cast") or row.kind is Kind.DROPOUT:
        return source
    is_moved = row.layout in ("permuted", "copied", "read")
    return source if is_moved and keeps_last_axis(mg, node, source) else None
