"""Memory writes of graph nodes: mutated inputs and their views."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from torch import fx

from chop.captured.nodes.targets import mutates_input

_VIEWS = frozenset(
    {
        *("detach", "view", "view_as", "reshape", "flatten", "t", "transpose", "permute"),
        *("squeeze", "unsqueeze", "narrow", "select", "diagonal", "expand", "unbind"),
    }
)
_APART = frozenset({"topk", "sort", "kthvalue", "mode"})
"""Calls with several results in separate memory."""


def mutated_names(graphs: Iterable[fx.Graph]) -> Iterator[str]:
    """Returns the parameters and buffers that nodes of a graph write into."""
    for graph in graphs:
        for node in graph.nodes:
            for written in written_by(node):
                source = get_memory(written)
                if source.op == "get_attr":
                    yield str(source.target)


def shared_writes(node: fx.Node) -> dict[fx.Node, fx.Node]:
    """Returns the inputs that a node writes into, each with the node that owns the memory.

    Inputs that only the node's own result reads afterwards are omitted.
    """
    memory = {written: get_memory(written) for written in written_by(node)}
    return {x: source for x, source in memory.items() if _is_read_later(node, source)}


def _is_read_later(node: fx.Node, source: fx.Node) -> bool:
    """Returns whether later nodes read the written memory other than through the node's result."""
    if source.op in ("placeholder", "get_attr"):
        return True
    later = node.next
    while later.op != "root":
        if any(
            node not in (chain := get_views(x)) and source in chain for x in later.all_input_nodes
        ):
            return True
        later = later.next
    return False


def get_views(node: fx.Node) -> list[fx.Node]:
    """Returns a node, the node whose memory it is a view of, and the views in between."""
    chain = [node]
    while node.args and isinstance(node.args[0], fx.Node) and _is_view(node):
        node = node.args[0]
        chain.append(node)
    return chain


def written_by(node: fx.Node) -> list[fx.Node]:
    """Returns the inputs that a node writes into, such as those of `add_` or of `out=`."""
    written = node.kwargs.get("out")
    if written is None and _is_in_place(node):
        written = node.args[0] if node.args else node.kwargs.get("input")
    targets = written if isinstance(written, tuple | list) else [written]
    return [target for target in targets if isinstance(target, fx.Node)]


def _is_in_place(node: fx.Node) -> bool:
    if node.op == "call_method":
        return str(node.target).endswith("_") and not str(node.target).endswith("__")
    function = cast(Callable[..., Any], node.target)
    root = node.graph.owning_module
    if node.op == "call_module" and root is not None:
        return getattr(root.get_submodule(str(node.target)), "inplace", False) is True
    by_flag = node.kwargs.get("inplace") is True
    return node.op == "call_function" and (by_flag or mutates_input(function))


def get_memory(node: fx.Node) -> fx.Node:
    """Returns the node whose memory a node's result is a view of."""
    return get_views(node)[-1]


def _is_view(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        whole = node.args[0]
        is_apart = isinstance(whole, fx.Node) and _find_name(whole) in _APART
        return not is_apart or "out" in whole.kwargs  # type: ignore[union-attr]
    attribute = node.target is getattr and node.args[1] in ("data", "mT", "T", "real")
    return attribute or _find_name(node) in _VIEWS or _is_in_place(node)


def _find_name(node: fx.Node) -> str:
    called = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    return str(called)
