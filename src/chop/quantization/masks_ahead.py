"""Passes later attention masks to the calls that compute the scores.

A scale that follows scores must not follow those that a mask hides a few operators later. So each
quantized call between the product of queries and keys and a softmax gets the masks as an argument;
see `chop.captured.masks.MASKS_AHEAD`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import fx

from chop.captured.masks import MASKS_AHEAD
from chop.captured.runtime import REGIONS
from chop.captured.targets import is_impure
from chop.captured.writes import memory_of, written_by
from chop.ir.graph import MaseGraph
from chop.ir.ops import Kind, Operator
from chop.ir.ops import dimensions as d
from chop.quantization.masked_nodes import maybe_masked

TURNED = frozenset({"mT", "T"})
"""Attributes that are a matrix with rows for columns."""

MaskAhead = tuple[str, fx.Node, tuple[tuple[str, tuple[Any, ...]], ...]]
"""An entry of `MASKS_AHEAD`, its tensor and sizes as nodes."""


class MasksAhead:
    """Finds the masks that a graph applies to scores after a node.

    Args:
        mg: the graph.
    """

    def __init__(self, mg: MaseGraph) -> None:
        self._rows = {node: mg.operator(node) for node in mg.nodes}
        self._order = {node: place for place, node in enumerate(self._rows)}
        self._maybe = maybe_masked(self._rows)

    def of(self, node: fx.Node) -> tuple[MaskAhead, ...]:
        """The masks that hide elements of a node's result before a softmax reads it.

        They are found along operators that work element by element, views and dropout. There are
        none where the result reaches no softmax, or where others read it as well.

        Args:
            node: a product, or an operator that works element by element.
        """
        masks: list[MaskAhead] = []
        steps: tuple[tuple[str, tuple[Any, ...]], ...] = ()
        row = self._rows[node]
        if not (row.is_product_of_activations or _is_elementwise(row)):
            return ()
        aliases = {node}
        while (user := self._only_user(aliases)) is not None:
            row = self._rows[user]
            if row.reads_scores:
                return tuple(masks)
            mask = self._find_mask(user, aliases)
            step = _step(row, user)
            if mask is not None:
                masks.append((*mask, steps))
            elif step is not None:
                steps = (*steps, step)
            elif not _is_elementwise(row):
                return ()
            is_written = not aliases.isdisjoint(written_by(user))
            aliases = aliases | {user} if is_written else {user}
        return ()

    def are_weights(self, x: Any) -> bool:
        """Returns whether a value is the result of a softmax, by dropout, casts and layouts."""
        while isinstance(x, fx.Node):
            row = self._rows[x]
            if row.name == "softmax":
                return True
            if not (row.kind is Kind.DROPOUT or row.layout) or not x.args:
                return False
            x = x.args[0]
        return False

    def _only_user(self, aliases: Collection[fx.Node]) -> fx.Node | None:
        """The node that reads scores next, if those that follow read its result alone.

        Args:
            aliases: nodes of one memory, which have been written in this order.
        """
        last = max(self._order[node] for node in aliases if node in self._order)
        users = {
            user
            for node in aliases
            for user in node.users
            if self._order[user] > last and not self._reads_size(user)
        }
        if not users:
            return None
        first = min(users, key=self._order.__getitem__)
        is_written = not set(aliases).isdisjoint(written_by(first))
        return first if is_written or len(users) == 1 else None

    def _reads_size(self, node: fx.Node) -> bool:
        row = self._rows[node]
        if row.name.endswith("_like") or row.name.startswith("new_"):
            return True
        return row.layout == "read" and row.follow is not d.indexed and not _is_turned(node)

    def _find_mask(self, user: fx.Node, scores: Collection[fx.Node]) -> tuple[str, fx.Node] | None:
        """The mask that an operator applies to scores; None for other operators."""
        row = self._rows[user]
        if row.selector:
            return _selected(row.selector, user, scores)
        if row.follow is not d.arithmetic:
            return None
        others = [x for x in user.all_input_nodes if x not in scores and x in self._maybe]
        return ("added", others[0]) if len(others) == 1 else None


def _selected(
    selector: str, user: fx.Node, scores: Collection[fx.Node]
) -> tuple[str, fx.Node] | None:
    """The boolean by which an operator takes scores or other numbers."""
    names = ["input", selector, "other"]
    if selector == "condition" and user.op == "call_function":
        names = [selector, "input", "other"]
    given = {**dict(zip(names, user.args, strict=False)), **user.kwargs}
    boolean, is_first = given.get(selector), given.get("input", given.get("self")) in scores
    if not isinstance(boolean, fx.Node) or boolean in scores:
        return None
    if is_first and given.get("other") in scores:
        return None
    return ("shown" if selector == "condition" and is_first else "hidden", boolean)


def _is_elementwise(row: Operator) -> bool:
    """Returns whether an operator gives each score a result of its own, in the same place."""
    if row.selector or row.kind is Kind.DROPOUT:
        return True
    return row.follow in (d.arithmetic, d.unchanged)


def _is_turned(node: fx.Node) -> bool:
    return node.target is getattr and node.args[1] in TURNED


def _step(row: Operator, node: fx.Node) -> tuple[str, tuple[Any, ...]] | None:
    """The method that lays out scores otherwise, and its arguments; None for other operators."""
    if _is_turned(node):
        return "transpose", (-2, -1)
    is_view = row.layout == "view" and row.follow is not d.unchanged
    if not (is_view or row.follow is d.transposed) or node.op == "call_module" or node.kwargs:
        return None
    return row.name, tuple(node.args[1:])


def hand_masks(node: fx.Node, masks: Sequence[MaskAhead]) -> bool:
    """Gives a quantized call its masks, whose nodes are moved ahead of it, if they can be.

    They cannot where a mask is made of the call's result, or is random, and where something in
    between writes what it reads, or begins a region. Then nothing is changed.

    Args:
        node: the call.
        masks: from `MasksAhead`.
    Returns: true if it has them.
    """
    place = {x: n for n, x in enumerate(node.graph.nodes)}
    late: set[fx.Node] = set()
    waiting: list[fx.Node] = []
    fx.node.map_arg(tuple(masks), waiting.append)
    while waiting:
        x = waiting.pop()
        if place[x] >= place[node] and x not in late:
            late.add(x)
            waiting += x.all_input_nodes
    if late:
        ordered = sorted(late, key=place.__getitem__)
        passed = list(place)[place[node] + 1 : place[ordered[-1]]]
        if node in late or any(x.op == "call_module" or is_impure(x) for x in late):
            return False
        if any(_binds(x, node, late, place) for x in passed):
            return False
        for x in ordered:
            node.prepend(x)
    node.kwargs = {**node.kwargs, MASKS_AHEAD: tuple(masks)}
    return True


def _binds(
    passed: fx.Node, node: fx.Node, late: Collection[fx.Node], place: Mapping[fx.Node, int]
) -> bool:
    """Returns whether nodes that are computed after another one cannot be computed before it.

    Args:
        passed: node before which the others would be computed.
        node: memory that was made before it may be read by any of them.
        late: the nodes.
        place: position of each node in the graph.
    """
    memory = [memory_of(x) for x in written_by(passed)]
    is_read = any(x in late or place[x] < place[node] for x in memory)
    return is_read or passed.target in REGIONS
