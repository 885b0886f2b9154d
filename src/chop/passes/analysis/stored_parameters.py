"""Which format each parameter of a model is stored in, whoever uses it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, fx, nn

from chop.formats import Float, NumberFormat
from chop.ir.graph import MaseGraph
from chop.nn.quantized import QuantCall, QuantizedOperator

FLOAT = Float()


@dataclass(frozen=True)
class StoredParameter:
    """A parameter and its format.

    Attributes:
        name: its dotted path.
        value: the parameter.
        format: the widest of the formats in which the graph's operators take it.
        operand: what it is to them: `weight`, `bias`, or "" where none of them quantises it.
    """

    name: str
    value: Tensor
    format: NumberFormat
    operand: str

    @property
    def bits(self) -> float:
        """Storage per element; a float has the width of its dtype."""
        if self.format.is_identity:
            return self.value.dtype.itemsize * 8
        return self.format.bits(self.value.shape)


def stored_parameters(mg: MaseGraph) -> list[StoredParameter]:
    """Every parameter of the model once, in its order; shared ones under their first name."""
    uses: dict[int, list[tuple[str, NumberFormat]]] = {}
    for node in mg.nodes:
        for parameter, operand, number_format in _uses(mg, node):
            uses.setdefault(id(parameter), []).append((operand, number_format))
    return [
        _widest(name, parameter, uses.get(id(parameter), []))
        for name, parameter in mg.model.named_parameters()
    ]


def _widest(name: str, parameter: Tensor, uses: list[tuple[str, NumberFormat]]) -> StoredParameter:
    stored = [StoredParameter(name, parameter, fmt, operand) for operand, fmt in uses]
    return max(stored, key=lambda s: s.bits, default=StoredParameter(name, parameter, FLOAT, ""))


def _uses(mg: MaseGraph, node: fx.Node) -> Iterator[tuple[Tensor, str, NumberFormat]]:
    """The parameters that a node takes, as what, and in which format."""
    module = mg.module_of(node)
    if isinstance(module, QuantCall):
        positions = zip(module.arguments, node.args, strict=False)
        for name, argument in [*positions, *node.kwargs.items()]:
            operand = module.arguments.get(name)
            for parameter in _fetched(mg, argument):
                yield parameter, operand or "", getattr(module.spec, operand) if operand else FLOAT
    elif module is not None:
        own = {id(parameter): name for name, parameter in module.named_parameters(recurse=False)}
        for parameter in module.parameters():
            operand = own.get(id(parameter), "")
            if isinstance(module, QuantizedOperator) and operand in module.operands:
                yield parameter, operand, getattr(module.spec, operand)
            else:
                yield parameter, "", FLOAT
    else:
        for argument in node.all_input_nodes:
            for parameter in _fetched(mg, argument):
                yield parameter, "", FLOAT


def _fetched(mg: MaseGraph, argument: object) -> Iterator[nn.Parameter]:
    """The parameter that an argument fetches, if it does."""
    if isinstance(argument, fx.Node) and argument.op == "get_attr":
        path, _, name = str(argument.target).rpartition(".")
        value = getattr(mg.model.get_submodule(path), name)
        if isinstance(value, nn.Parameter):
            yield value
