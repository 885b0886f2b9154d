"""Difference of two graphs: nodes that are gone, new, or call something else."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from torch import fx

from chop.captured.module import CapturedModule
from chop.ir.ops import module_of_node


@dataclass(frozen=True)
class Difference:
    """What differs in a second graph.

    Attributes:
        gone: nodes of the first alone, in order.
        new: nodes of the second alone, in order.
        changed: by node of the first, the one in its place that calls something else.
        same: by node of the first, its counterpart.
    """

    gone: tuple[fx.Node, ...]
    new: tuple[fx.Node, ...]
    changed: dict[fx.Node, fx.Node]
    same: dict[fx.Node, fx.Node]


def difference(model: CapturedModule, other: CapturedModule) -> Difference:
    """Aligns the nodes of two graphs by the module they are in and what they call.

    Numbers in names are not compared: where one `add` is gone, the others have other numbers.
    """
    mine, theirs = list(model.graph.nodes), list(other.graph.nodes)
    keys = [_key(node, model) for node in mine], [_key(node, other) for node in theirs]
    matcher = SequenceMatcher(None, *keys, autojunk=False)
    same = {
        mine[block.a + k]: theirs[block.b + k]
        for block in matcher.get_matching_blocks()
        for k in range(block.size)
    }
    found = set(same.values())
    named = {(n.name, _home(n)): n for n in theirs if n not in found}
    pairs = ((n, named.get((n.name, _home(n)))) for n in mine if n not in same)
    changed = {node: twin for node, twin in pairs if twin is not None}
    moved = {n: t for n, t in changed.items() if describe(n, model) == describe(t, other)}
    same |= moved
    changed = {n: t for n, t in changed.items() if n not in moved}
    found |= {*changed.values(), *moved.values()}
    gone = tuple(n for n in mine if n not in same and n not in changed)
    return Difference(gone, tuple(n for n in theirs if n not in found), changed, same)


def difference_lines(model: CapturedModule, other: CapturedModule) -> Iterator[str]:
    """One line per node: "-" for gone, "+" for new and "~" for changed ones."""
    found = difference(model, other)
    yield from (f"- {node.name}: {describe(node, model)}" for node in found.gone)
    yield from (f"+ {node.name}: {describe(node, other)}" for node in found.new)
    for node, twin in found.changed.items():
        yield f"~ {node.name}: {describe(node, model)} -> {describe(twin, other)}"


def describe(node: fx.Node, model: CapturedModule) -> str:
    """What a node calls, as text."""
    module = module_of_node(node, model)
    called = repr(module) if module is not None else getattr(node.target, "__name__", node.target)
    return f"{node.op} {called}"


def _key(node: fx.Node, model: CapturedModule) -> Hashable:
    named = node.target if node.op in ("call_module", "get_attr", "placeholder") else ""
    return _home(node), named, describe(node, model)


def _home(node: fx.Node) -> str:
    """The path of the module that a node's call is written in."""
    if node.op in ("call_module", "get_attr"):
        return str(node.target).rpartition(".")[0]
    stack = list(node.meta.get("nn_module_stack") or ())
    return str(stack[-1]) if stack else ""
