"""Values of attentions: the linear layer that makes them, and the one that reads their sums.

Attention adds values up along the tokens, head by head. Values that are rotated within each head
give sums that are, which the next linear layer undoes.

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
    """The values of one attention.

    Attributes:
        maker: the linear layer that makes them.
        reader: the one that reads their sums.
        head_size: channels of a head.
    """

    maker: fx.Node
    reader: fx.Node
    head_size: int


def find_values(mg: MaseGraph, reader: fx.Node) -> Values | str:
    """The values whose sums a linear layer reads, or why they cannot be rotated for nothing."""
    path: list[fx.Node] = [reader]
    value = find_input(reader)
    while isinstance(value, fx.Node) and _get_values(mg, value) is None:
        path.append(value)
        value = _before(mg, value)
    if not isinstance(value, fx.Node):
        return "it reads no attention"
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
            return f"'{node.name}' parts the channels of a head"
        others = [user for user in _readers(mg, node) if user not in path]
        if others:
            return f"'{others[0].name}' reads the values too"
    return Values(value, reader, size)


def _readers(mg: MaseGraph, node: fx.Node) -> list[fx.Node]:
    """What reads a value, through a cache or not."""
    found: list[fx.Node] = []
    for user in node.users:
        if mg.operator(user).follow is d.cached:
            position = user.args.index(node) - 1
            found += [x for x in user.users if x.args[1:] == (position,)]
        elif not reads_no_number(mg, user, node):
            found.append(user)
    return found


def _get_values(mg: MaseGraph, node: fx.Node) -> fx.Node | None:
    """What an attention or a product of its weights sums up; None of other nodes."""
    row = mg.operator(node)
    if row.follow is d.attention:
        found = node.args[2] if len(node.args) > 2 else node.kwargs.get("value")
        return found if isinstance(found, fx.Node) else None
    is_product = row.kind is Kind.PRODUCT and row.weight is None
    is_product &= "weight" in row.arguments.values() and len(node.args) == 2
    given = node.args[1] if is_product else None
    return given if isinstance(given, fx.Node) else None


def _before(mg: MaseGraph, node: fx.Node) -> fx.Node | None:
    """What a node only moves, casts, repeats or caches; None of nodes that do more."""
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
