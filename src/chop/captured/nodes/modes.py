"""Nodes that a graph runs only in `train()` or only in `eval()`.

A model that keeps averages, counters or a codebook while it trains has other operators in `train()`
than in `eval()`. Its graph has those of both. `node.meta[MODE]` names the mode that a node is of,
and `by_mode` nodes choose between a value of one and a value of the other. Both name the module
whose mode counts, so that a part that is frozen with `part.eval()` does as it does in the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from chop.captured.module_tree import member_at
from chop.captured.runtime import by_mode
from chop.errors import GuardError

MODE = "mode"
"""Key of `node.meta`: `(training, path)`, the mode that the node is of and the module of it."""

IsTraining = Callable[[str], bool]
"""Tells of a path whether its module is in training."""


def mode_paths(graph: fx.Graph) -> list[str]:
    """The paths of the modules whose modes a graph follows, without a repetition."""
    return sorted({path for node in graph.nodes if (path := _module_path(node)) is not None})


def _module_path(node: fx.Node) -> str | None:
    if node.target is by_mode:
        return str(node.args[2])
    return node.meta[MODE][1] if MODE in node.meta else None


def is_of_training(node: fx.Node) -> bool:
    """Returns whether a node runs in `train()` only."""
    return bool(node.meta.get(MODE, (False, ""))[0])


def modes_in(model: nn.Module) -> IsTraining:
    """The present modes of a model."""

    def is_training(path: str) -> bool:
        module = member_at(model, path) if path else model
        return isinstance(module, nn.Module) and module.training

    return is_training


def chosen(node: fx.Node, is_training: IsTraining) -> Any:
    """The argument that a `by_mode` node gives."""
    in_training, in_eval, path = node.args
    return in_training if is_training(str(path)) else in_eval


def absent_nodes(graph: fx.Graph, is_training: IsTraining) -> set[fx.Node]:
    """The nodes that do not run in some modes, with what passes have put behind them."""
    absent: set[fx.Node] = set()
    for node in graph.nodes:
        read = set(node.all_input_nodes)
        if node.target is by_mode:
            read.clear()
            fx.node.map_arg(chosen(node, is_training), read.add)
        training, path = node.meta.get(MODE, (None, ""))
        is_of_other = training is not None and training != is_training(path)
        if is_of_other or not absent.isdisjoint(read):
            absent.add(node)
    return absent


def settle(graph: fx.Graph, is_training: IsTraining) -> None:
    """Erases what does not run in some modes, and puts chosen values in the places of choices.

    Raises:
        GuardError: the result is among it.
    """
    absent = absent_nodes(graph, is_training)
    for node in list(graph.nodes):
        if node.target is by_mode and node not in absent:
            value = chosen(node, is_training)
            for user in list(node.users):
                user.args = _put(user.args, node, value)
                user.kwargs = _put(user.kwargs, node, value)
            graph.erase_node(node)
        node.meta.pop(MODE, None)
    for node in reversed(graph.nodes):
        if node in absent and node.op == "output":
            raise GuardError(
                "the graph has no result where a part of it is in another mode than the rest; "
                "switch the whole model with train() or eval()"
            )
        if node in absent:
            graph.erase_node(node)


def _put(arguments: Any, node: fx.Node, value: Any) -> Any:
    return fx.node.map_arg(arguments, lambda x: value if x is node else x)


def in_mode(graph: fx.Graph, is_training: IsTraining) -> fx.Graph:
    """A copy of a graph with the nodes that run in some modes."""
    settled = fx.Graph()
    settled.output(settled.graph_copy(graph, {}))
    settle(settled, is_training)
    return settled


class Forwards:
    """The `forward` of a graph in each combination of modes that it was called in.

    Args:
        paths: the modules whose modes count.
        make: compiles the graph in some modes.
    """

    def __init__(self, paths: list[str], make: Callable[[IsTraining], Callable[..., Any]]) -> None:
        self._paths, self._make = paths, make
        self._known = {
            flags: self._made(flags) for flags in ((True,) * len(paths), (False,) * len(paths))
        }

    def _made(self, flags: tuple[bool, ...]) -> Callable[..., Any]:
        return self._make(dict(zip(self._paths, flags, strict=True)).__getitem__)

    def of(self, model: nn.Module) -> Callable[..., Any]:
        """The one for the present modes of a model."""
        is_training = modes_in(model)
        flags = tuple(map(is_training, self._paths))
        if flags not in self._known:
            self._known[flags] = torch.compiler.disable(self._made)(flags)
        return self._known[flags]
