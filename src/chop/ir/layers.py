"""Layers: the modules with a weight that a graph calls, selectors of them, and shared weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from torch import Tensor, fx, nn

from chop.captured.nodes.modes import is_of_training
from chop.captured.nodes.writes import written_by
from chop.errors import ConfigError, did_you_mean
from chop.ir.dotted import deepgetattr
from chop.ir.graph import MaseGraph
from chop.ir.ops import Operator, Weight
from chop.private.modules import own_parameters


@dataclass(frozen=True, eq=False)
class Layer:
    """Layer: a module with a weight, and the nodes that call it.

    Attributes:
        path: its dotted path, the first if it has several.
        row: of the operator table.
        module: the module.
        nodes: the nodes that call it, in order.
    """

    path: str
    row: Operator
    module: nn.Module
    nodes: tuple[fx.Node, ...]

    @property
    def weight(self) -> Tensor:
        """The stored weight."""
        return cast(Tensor, self.module.weight)

    @property
    def axes(self) -> Weight:
        """The axes of the weight."""
        assert self.row.weight is not None
        return self.row.weight

    def answers_to(self, selector: str) -> bool:
        """True when an operator name, a path, a node name or a pattern of these means it."""
        names = (self.row.name, self.path, *(node.name for node in self.nodes))
        return selector in names or any(re.fullmatch(selector, name) for name in names)


def list_layers(mg: MaseGraph, wanted: Callable[[Operator, nn.Module], bool]) -> list[Layer]:
    """The modules that a graph calls, in its order, those that are wanted."""
    calls: dict[nn.Module, list[fx.Node]] = {}
    for node in mg.nodes:
        module = mg.get_module(node)
        if module is not None and wanted(mg.operator(node), module):
            calls.setdefault(module, []).append(node)
    return [
        Layer(str(nodes[0].target), mg.operator(nodes[0]), module, tuple(nodes))
        for module, nodes in calls.items()
    ]


def check_selector(
    selector: str, layers: Sequence[Layer], where: str, which: str = "that can be pruned"
) -> None:
    """Raises ConfigError where a selector means no layer; `which` says what layers there are."""
    try:
        found = any(layer.answers_to(selector) for layer in layers)
    except re.error as error:
        raise ConfigError(f"{where}: '{selector}' is no regular expression: {error}.") from None
    if not found:
        names = {x for layer in layers for x in (layer.path, layer.row.name)}
        nearest = did_you_mean(selector, names)
        raise ConfigError(f"{where}: no layer {which} matches '{selector}': {nearest}")


def user_besides(mg: MaseGraph, tensor: object, modules: Sequence[nn.Module]) -> str | None:
    """Names something that uses a parameter, `modules` aside; None if nothing does.

    What only training reads, as an average of the weights, follows them.
    """
    known = {id(module) for module in modules}
    for node in mg.nodes:
        called = mg.get_module(node)
        for module in called.modules() if called is not None else ():
            if id(module) not in known and any(
                x is tensor for x in own_parameters(module).values()
            ):
                return f"the {type(module).__name__} '{node.target}'"
        follows = is_of_training(node) and not any(node in written_by(user) for user in node.users)
        is_read = node.op == "get_attr" and deepgetattr(mg.model, str(node.target)) is tensor
        if is_read and not follows:
            return f"node '{node.name}'"
    return None
