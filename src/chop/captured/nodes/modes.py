"""Nodes that a graph runs only in `train()` or only in `eval()`.

A model that updates averages, counters or a codebook in training has other operators in `train()`
than in `eval()`. Its graph has those of both. `node.meta[MODE]` is the mode of a single-mode node,
and `by_mode` nodes select between values of the two modes. Both name the module whose mode
counts, so that a part that is frozen with `part.eval()` behaves as in the model.
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
"""Key of `node.meta`: `(training, path)`, the mode of the node, and the module that decides."""

IsTraining = Callable[[str], bool]
"""Function that returns whether the module at a path is in training."""


def mode_paths(graph: fx.Graph) -> list[str]:
    """Returns the distinct paths of the modules whose modes a graph follows."""
    return sorted({path for node in graph.nodes if (path := _module_path(node)) is not None})


def _module_path(node: fx.Node) -> str | None:
    if node.target is by_mode:
        return str(node.args[2])
    return node.meta[MODE][1] if MODE in node.meta else None


def is_of_training(node: fx.Node) -> bool:
    """Returns whether a node runs in `train()` only."""
    return bool(node.meta.get(MODE, (False, ""))[0])


def current_modes(model: nn.Module) -> IsTraining:
    """Returns the current modes of a model."""

    def is_training(path: str) -> bool:
        module = member_at(model, path) if path else model
        return isinstance(module, nn.Module) and module.training

    return is_training


def chosen(node: fx.Node, is_training: IsTraining) -> Any:
    """Returns the selected argument of a `by_mode` node."""
    in_training, in_eval, path = node.args
    return in_training if is_training(str(path)) else in_eval


def absent_nodes(graph: fx.Graph, is_training: IsTraining) -> set[fx.Node]:
    """Returns the nodes that do not run in these modes, including those that passes added after
    them.
    """
    absent: set[fx.Node] = set()
    for node in graph.nodes:
        read = set(node.all_input_nodes)
        if node.target is by_mode:
            read.clear()
            fx.node.map_arg(chosen(node, is_training), read.add)
        training, path = node.meta.get(MODE, (None, ""))
        is_of_other = training is not None and training != is_training(path)
        # Passes may have added readers without a mode, which have no input in the other mode.
        if is_of_other or not absent.isdisjoint(read):
            absent.add(node)
    return absent


def settle(graph: fx.Graph, is_training: IsTraining) -> None:
    """Erases the nodes that do not run in these modes, and replaces choices by the selected values.

    Raises:
        GuardError: the output is among them.
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
                "the graph has no result if a part of it is in another mode than the rest; "
                "switch the whole model with train() or eval()"
            )
        if node in absent:
            graph.erase_node(node)


def _put(arguments: Any, node: fx.Node, value: Any) -> Any:
    return fx.node.map_arg(arguments, lambda x: value if x is node else x)


def copy_in_mode(graph: fx.Graph, is_training: IsTraining) -> fx.Graph:
    """Returns a copy of a graph with the nodes that run in these modes."""
    settled = fx.Graph()
    settled.output(settled.graph_copy(graph, {}))
    settle(settled, is_training)
    return settled


class Forwards:
    """Compiled `forward` functions of a graph for each combination of modes in use.

    Args:
        paths: modules whose modes count.
        make: compiles the graph for given modes.
    """

    def __init__(self, paths: list[str], make: Callable[[IsTraining], Callable[..., Any]]) -> None:
        self._paths, self._make = paths, make
        self._known = {
            # Both common combinations are compiled at once; others follow when a part is frozen.
            flags: self._made(flags)
            for flags in ((True,) * len(paths), (False,) * len(paths))
        }

    def _made(self, flags: tuple[bool, ...]) -> Callable[..., Any]:
        return self._make(dict(zip(self._paths, flags, strict=True)).__getitem__)

    def of(self, model: nn.Module) -> Callable[..., Any]:
        """Returns the function for the current modes of a model."""
        is_training = current_modes(model)
        flags = tuple(map(is_training, self._paths))
        if flags not in self._known:
            self._known[flags] = torch.compiler.disable(self._made)(flags)
        return self._known[flags]
