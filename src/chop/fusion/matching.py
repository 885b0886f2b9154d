"""Pattern matching on a graph: what a node computes, and whether it may disappear."""

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
"""From here on, to be added to a float32 score and to replace it come to the same."""


def operation(mg: MaseGraph, node: Any) -> str:
    """Operator name of a node, be it a function, a method or a module; "" for what is no node."""
    return mg.operator(node).name if isinstance(node, fx.Node) else ""


def get_result(node: fx.Node) -> TensorInfo:
    """Shape and dtype of what a node returns, with the example inputs."""
    return node_metadata(node).common.results.get("data_out_0", TensorInfo())


def argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    """Argument of a call, given by position or by name."""
    return node.args[position] if position < len(node.args) else node.kwargs.get(name, default)


def is_number(value: Any) -> bool:
    """True for a Python number that is no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_cast(mg: MaseGraph, node: Any) -> bool:
    """True for a change of dtype that gives a tensor of reals."""
    is_cast = isinstance(node, fx.Node) and mg.operator(node).layout == "cast"
    return is_cast and get_result(node).is_floating


def check_free(mg: MaseGraph, node: fx.Node) -> None:
    """Raises NotRewritableError where what a node calls has to stay as it is."""
    module = mg.get_module(node)
    if isinstance(module, QuantizedOperator) and not module.spec.is_float:
        raise NotRewritableError(f"'{node.name}' is quantized")
    if module is not None and has_hooks(module):
        raise NotRewritableError(f"'{node.name}' has hooks")


def erase_calls(mg: MaseGraph, nodes: Iterable[fx.Node]) -> None:
    """Erases nodes without readers, in this order, and modules that nothing calls any more."""
    paths: set[str] = set()
    for node in nodes:
        paths.update({str(node.target)} if node.op == "call_module" else ())
        mg.fx_graph.erase_node(node)
    called = {str(node.target) for node in mg.nodes if node.op == "call_module"}
    for path in paths - called:
        mg.model.delete_submodule(path)
