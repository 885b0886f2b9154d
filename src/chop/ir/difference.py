"""Graph diff: removed, added and changed nodes of two graphs."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from torch import fx

from chop.captured.module import CapturedModule
from chop.ir.ops import module_of_node


@dataclass(frozen=True)
class Difference:
    """Alignment of the nodes of two graphs.

    Attributes:
        removed: nodes that only the first graph has, in order.
        new: nodes that only the second graph has, in order.
        changed: node of the first graph -> node in its place with another call.
        same: node of the first graph -> its counterpart.
    """

    removed: tuple[fx.Node, ...]
    new: tuple[fx.Node, ...]
    changed: dict[fx.Node, fx.Node]
    same: dict[fx.Node, fx.Node]


def difference(model: CapturedModule, other: CapturedModule) -> Difference:
    """Aligns the nodes of two graphs by their module and by what they call.

    Numbers in names are ignored, because removing one `add` renumbers the others.
    """
    mine, theirs = list(model.graph.nodes), list(other.graph.nodes)
    keys = [_key(node, model) for node in mine], [_key(node, other) for node in theirs]
    matcher = SequenceMatcher(None, *keys, autojunk=False)
    same = {
        mine[block.a + k]: theirs[block.b + k]
        for block in matcher.get_matching_blocks()
        for k in range(block.size)
    }
    # Unmatched nodes with equal name and module are one place with another call.
    matched = set(same.values())
    named = {(n.name, _home(n)): n for n in theirs if n not in matched}
    pairs = ((n, named.get((n.name, _home(n)))) for n in mine if n not in same)
    changed = {node: twin for node, twin in pairs if twin is not None}
    # Equal calls in another position are the same node.
    moved = {n: t for n, t in changed.items() if describe(n, model) == describe(t, other)}
    same |= moved
    changed = {n: t for n, t in changed.items() if n not in moved}
    matched |= {*changed.values(), *moved.values()}
    removed = tuple(n for n in mine if n not in same and n not in changed)
    return Difference(removed, tuple(n for n in theirs if n not in matched), changed, same)


def difference_lines(model: CapturedModule, other: CapturedModule) -> Iterator[str]:
    """Returns one line per differing node: "-" for removed, "+" for new and "~" for changed."""
    diff = difference(model, other)
    yield from (f"- {node.name}: {describe(node, model)}" for node in diff.removed)
    yield from (f"+ {node.name}: {describe(node, other)}" for node in diff.new)
    for node, twin in diff.changed.items():
        yield f"~ {node.name}: {describe(node, model)} -> {describe(twin, other)}"


def describe(node: fx.Node, model: CapturedModule) -> str:
    """Returns a node's call as text."""
    module = module_of_node(node, model)
    called = repr(module) if module is not None else getattr(node.target, "__name__", node.target)
    return f"{node.op} {called}"


def _key(node: fx.Node, model: CapturedModule) -> Hashable:
    named = node.target if node.op in ("call_module", "get_attr", "placeholder") else ""
    return _home(node), named, describe(node, model)


def _home(node: fx.Node) -> str:
    """Returns the path of the module whose code contains a node's call."""
    if node.op in ("call_module", "get_attr"):
        return str(node.target).rpartition(".")[0]
    stack = list(node.meta.get("nn_module_stack") or ())
    return str(stack[-1]) if stack else ""
