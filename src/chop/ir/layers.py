"""Weighted layers of a graph: listing, selection by pattern, and weight sharing."""

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
    """Module with a weight, and the nodes that call it.

    Attributes:
        path: dotted path, the first if it has several.
        row: row of the operator table.
        module: the module.
        nodes: the calling nodes, in order.
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
        """Returns whether an operator name, path, node name or pattern selects the layer."""
        names = (self.row.name, self.path, *(node.name for node in self.nodes))
        return selector in names or any(re.fullmatch(selector, name) for name in names)


def list_layers(mg: MaseGraph, wanted: Callable[[Operator, nn.Module], bool]) -> list[Layer]:
    """Returns the layers of a graph that satisfy a predicate, in order."""
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
    """Raises ConfigError if a selector matches no layer; `which` describes the candidates."""
    try:
        has_match = any(layer.answers_to(selector) for layer in layers)
    except re.error as error:
        raise ConfigError(f"{where}: '{selector}' is not a regular expression: {error}.") from None
    if not has_match:
        names = {x for layer in layers for x in (layer.path, layer.row.name)}
        nearest = did_you_mean(selector, names)
        raise ConfigError(f"{where}: no layer {which} matches '{selector}': {nearest}")


def user_besides(mg: MaseGraph, tensor: object, modules: Sequence[nn.Module]) -> str | None:
    """Returns the name of a user of a parameter other than `modules`; None if there is none.

    Training state, such as an average of the weights, does not count, because it follows them.
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
