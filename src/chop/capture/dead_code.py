"""Dead-code elimination: unused nodes, no-op gradient modes and autocast regions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx, nn

from chop.captured.module_tree import is_impure_module
from chop.captured.nodes.regions import eliminate_regions
from chop.captured.nodes.targets import is_impure
from chop.captured.runtime import leave_autocast, swap_grad_mode
from chop.private.torch_api import SET_GRAD_ENABLED


def eliminate_dead_code(graph: fx.Graph, model: nn.Module, extras: Mapping[str, nn.Module]) -> None:
    """Erases unused nodes unless they draw random numbers or change state."""

    def matters(node: fx.Node) -> bool:
        if node.op != "call_module":
            return is_impure(node)
        path = str(node.target)
        return is_impure_module(extras[path] if path in extras else model.get_submodule(path))

    graph.eliminate_dead_code(matters)


def eliminate_grad_modes(graph: fx.Graph, values: Mapping[fx.Node, Any]) -> None:
    """Erases `torch.no_grad()` and `enable_grad()` regions without differentiable values.

    Floating-point inputs count as differentiable, since a caller may ask for their gradient.

    Args:
        graph: a recording made with gradients enabled, of inputs that require none.
        values: fake value of each node.
    """
    follow_inputs = _differentiable_in_inputs(graph, values)

    def needs_grad(node: fx.Node) -> bool:
        inputs = [values.get(source) for source in node.all_input_nodes]
        # The recorded inputs require no gradient, so `requires_grad` shows the influence of
        # parameters only. The influence of inputs is followed separately.
        required = any(isinstance(value, Tensor) and value.requires_grad for value in inputs)
        follows = _is_floating(values.get(node)) and _reads_any(node, follow_inputs)
        return required or follows

    eliminate_regions(graph, SET_GRAD_ENABLED, needs_grad)


def _differentiable_in_inputs(graph: fx.Graph, values: Mapping[fx.Node, Any]) -> set[fx.Node]:
    """Returns the nodes that have a gradient if the inputs require one."""
    dead: set[fx.Node] = set()
    begun: dict[fx.Node, bool] = {}
    enabled = True
    for node in graph.nodes:
        if node.target is swap_grad_mode:
            begun[node], enabled = enabled, bool(node.args[0])
        elif node.target is SET_GRAD_ENABLED:
            enabled = begun.get(node.args[0], True)
        elif not _is_floating(values.get(node)) or _is_detached(node):
            continue
        elif node.op == "placeholder" or (enabled and _reads_any(node, dead)):
            dead.add(node)
    return dead


def _reads_any(node: fx.Node, nodes: set[fx.Node]) -> bool:
    return any(source in nodes for source in node.all_input_nodes)


def _is_detached(node: fx.Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name in ("detach", "detach_")


def eliminate_autocast(graph: fx.Graph, values: Mapping[fx.Node, Any]) -> None:
    """Erases autocast regions that compute no floating-point tensor."""
    eliminate_regions(graph, leave_autocast, lambda node: _is_floating(values.get(node)))


def _is_floating(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_is_floating, value.values()))
    if isinstance(value, tuple | list):
        return any(map(_is_floating, value))
    return isinstance(value, Tensor) and value.is_floating_point()
