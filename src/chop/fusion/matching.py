"""Pattern matching on graphs: operators of nodes, and conditions for erasing them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import fx

from chop.captured.overrides import has_hooks
from chop.ir.graph import MaseGraph, node_metadata
from chop.ir.graph.rewrite import NotRewritableError
from chop.ir.metadata import TensorInfo
from chop.nn.quantized import QuantizedOperator

SURE_TO_HIDE = -1e9
"""Number below which adding it to a float32 score equals replacing the score by it."""


def operation(mg: MaseGraph, node: Any) -> str:
    """Returns the operator name of a function, method or module node; "" for other values."""
    return mg.operator(node).name if isinstance(node, fx.Node) else ""


def get_result(node: fx.Node) -> TensorInfo:
    """Returns the shape and dtype of a node's result for the example inputs."""
    return node_metadata(node).common.results.get("data_out_0", TensorInfo())


def argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    """Returns an argument of a call, given by position or by name."""
    return node.args[position] if position < len(node.args) else node.kwargs.get(name, default)


def is_number(value: Any) -> bool:
    """Returns true for a Python number that is not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_cast(mg: MaseGraph, node: Any) -> bool:
    """Returns true for a dtype conversion to a real tensor."""
    is_cast = isinstance(node, fx.Node) and mg.operator(node).layout == "cast"
    return is_cast and get_result(node).is_floating


def check_free(mg: MaseGraph, node: fx.Node) -> None:
    """Raises NotRewritableError if the function or module of a node must not change."""
    module = mg.get_module(node)
    if isinstance(module, QuantizedOperator) and not module.spec.is_float:
        raise NotRewritableError(f"'{node.name}' is quantized")
    if module is not None and has_hooks(module):
        raise NotRewritableError(f"'{node.name}' has hooks")


def erase_calls(mg: MaseGraph, nodes: Iterable[fx.Node]) -> None:
    """Erases nodes without readers in the given order, and modules that are no longer called."""
    paths: set[str] = set()
    for node in nodes:
        paths.update({str(node.target)} if node.op == "call_module" else ())
        mg.fx_graph.erase_node(node)
    called = {str(node.target) for node in mg.nodes if node.op == "call_module"}
    for path in paths - called:
        mg.model.delete_submodule(path)
