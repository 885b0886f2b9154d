"""Builder of a module from the nodes of a QONNX file."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, fx, nn

from chop.errors import CheckpointError, ConfigError
from chop.export.qonnx.formats import Constant, covering_format
from chop.formats import NumberFormat, QuantSpec
from chop.formats.spec import FLOAT
from chop.ir.ops import get_module_row
from chop.nn.quantized import QuantizedOperator

SHAPES, RANGES = "qonnx_shapes", "qonnx_ranges"
"""Metadata of a module: sizes of each input, and smallest and largest value of its first Quant."""
FAR = 1e30
"""Magnitude beyond the range of every format."""


class Node(NamedTuple):
    """Node of a file.

    Attributes:
        name: name of the layer: that of the node, as an identifier.
        title: name and operator, for messages.
        operator: operator, such as "MatMul".
        inputs: names of its inputs; "" for those left out.
        output: name of its first output.
        attributes: attributes by name.
    """

    name: str
    title: str
    operator: str
    inputs: Sequence[str]
    output: str
    attributes: Mapping[str, Any]

    @classmethod
    def of(cls, proto: Any, number: int) -> Self:
        """Parses an `onnx.NodeProto`; its number names a node without a name."""
        from onnx import helper

        attributes = {each.name: helper.get_attribute_value(each) for each in proto.attribute}
        name = identifier(proto.name or f"{proto.op_type.lower()}_{number}")
        output = next(iter(proto.output), "")
        title = f"'{proto.name or output or number}' ({proto.op_type})"
        return cls(name, title, proto.op_type, proto.input, output, attributes)


def identifier(name: str) -> str:
    """Returns a name as a Python identifier.

    >>> identifier("/features.0/Conv"), identifier("7"), identifier("in")
    ('features_0_Conv', 'node_7', 'node_in')
    """
    plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    is_usable = plain.isidentifier() and plain != "self" and not keyword.iskeyword(plain)
    return plain if is_usable else f"node_{plain}"


@dataclass(frozen=True)
class Value:
    """Activation: the result of a layer, and a rounding of it that no layer has applied yet.

    Attributes:
        node: its node in the module's graph.
        example: its value for inputs of zeros.
        number_format: rounding by the layers that read it; None if there is none.
        layer: path of the layer whose result may be rounded instead; "" if there is none.
        is_rounded: whether values are already rounded to `number_format`.
    """

    node: fx.Node
    example: Tensor
    number_format: NumberFormat | None = None
    layer: str = ""
    is_rounded: bool = False


class Builder:
    """Module under construction.

    Args:
        readers: number of nodes and outputs of the model that read each tensor of the file.
    """

    def __init__(self, readers: Mapping[str, int]) -> None:
        self.readers = readers
        self.constants: dict[str, Constant] = {}
        self.values: dict[str, Value] = {}
        self.specs: dict[str, QuantSpec] = {}
        self._graph = fx.Graph()
        # A GraphModule, so that layers do not get the names of its own attributes.
        self._root = fx.GraphModule(nn.Module(), fx.Graph())
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._ranges: dict[str, tuple[float, float]] = {}

    def add_input(self, name: str, shape: tuple[int, ...]) -> None:
        """Adds an input of the model; the first size is the batch.

        Raises:
            ConfigError: if the batch is not that of the other inputs.
        """
        if self._shapes and shape[0] != self.rows:
            raise ConfigError(f"its batch is {shape[0]}, expected {self.rows} as of other inputs")
        target = identifier(name)
        while target in self._shapes:
            target += "_"
        node = self._graph.placeholder(target)
        self._shapes[str(node.target)] = shape
        self.values[name] = Value(node, torch.zeros(shape))

    @property
    def rows(self) -> int:
        """Batch size of the file."""
        return next(iter(self._shapes.values()))[0]

    def value(self, name: str) -> Value:
        """Returns an activation by the name of its tensor."""
        if name in self.constants:
            raise ConfigError(f"expected an activation, '{name}' is a constant")
        if name not in self.values:
            raise CheckpointError(f"no node computes '{name}': the file is broken.")
        return self.values[name]

    def constant(self, name: str) -> Constant:
        """Returns a constant by the name of its tensor."""
        if name not in self.constants:
            raise ConfigError(f"'{name}' has to be a constant")
        return self.constants[name]

    def call(
        self,
        node: Node,
        layer: nn.Module,
        *read: Value,
        numbers: Sequence[float] = (),
        suffix: str = "",
        **formats: NumberFormat,
    ) -> Value:
        """Adds a layer that reads activations.

        Args:
            node: node of the file that names the layer.
            layer: the layer, in float or a quantized call.
            read: activations.
            numbers: further arguments of a quantized call.
            suffix: end of the name.
            formats: formats of operands; `data_in` is by default that of the first activation.
        """
        path = f"{node.name}{suffix}"
        # A node can have the name of another layer, or of an attribute such as `forward`.
        while hasattr(self._root, path):
            path += "_"
        specified: dict[str, Any] = {"data_in": read[0].number_format or FLOAT, **formats}
        self._root.add_module(path, layer.eval())
        self.specs[path] = QuantSpec(**specified)
        made = self._graph.call_module(path, (*(each.node for each in read), *numbers))
        with torch.no_grad():
            return Value(made, layer(*(each.example for each in read), *numbers), layer=path)

    def layer(self, path: str) -> nn.Module:
        """Returns a layer by its path."""
        return self._root.get_submodule(path)

    def alias(self, name: str) -> Value:
        """Returns an activation for a node that does not change its values.

        Its layer cannot round the result if other nodes read it, too.
        """
        value = self.value(name)
        return value if self.readers[name] == 1 else replace(value, layer="")

    def move(self, method: str, value: Value, *arguments: Any) -> Value:
        """Adds a call of a tensor method that moves values of an alias, which keep their format."""
        made = self._graph.call_method(method, (value.node, *arguments))
        return replace(value, node=made, example=getattr(value.example, method)(*arguments))

    def join(self, values: Sequence[Value], axis: int) -> Value:
        """Adds a concatenation of activations in one format."""
        made = self._graph.call_function(torch.cat, ([each.node for each in values], axis))
        example = torch.cat([each.example for each in values], axis)
        is_rounded = all(each.is_rounded for each in values)
        return Value(made, example, values[0].number_format, is_rounded=is_rounded)

    def round(self, value: Value, number_format: NumberFormat, readers: int) -> Value:
        """Rounds an activation.

        Args:
            value: the activation.
            number_format: format of the Quant node.
            readers: number of nodes that read the activation before it is rounded.
        """
        if value.number_format == number_format:
            return value
        source = _find_input(value.node)
        if source is not None:
            low, high = number_format.round(torch.tensor([-FAR, FAR])).tolist()
            self._ranges.setdefault(source, (low, high))
        value = self.settle(value)
        layer = value.layer if readers == 1 else ""
        return replace(value, number_format=number_format, layer=layer, is_rounded=False)

    def settle(self, value: Value) -> Value:
        """Rounds the result of the layer that computes an activation, for readers without formats.

        Raises:
            ConfigError: if no layer can round it.
        """
        if value.number_format is None or value.is_rounded:
            return replace(value, number_format=None, is_rounded=False)
        if not value.layer:
            raise ConfigError(
                f"'{value.node.name}' is rounded here as well as elsewhere; expected the same "
                "scale and bit width, or a layer in between"
            )
        spec = self.specs[value.layer].with_quantizers(data_out=value.number_format)
        self.specs[value.layer] = spec
        return replace(value, number_format=None, layer="")

    def in_one_format(self, values: Sequence[Value]) -> list[Value]:
        """Returns activations with the same format, for a layer that has one for all its inputs.

        The format of different fixed-point formats holds the values of all of them.
        """
        formats = [each.number_format for each in values]
        if all(each == formats[0] for each in formats):
            return [*values]
        common = None if None in formats else covering_format([x for x in formats if x])
        if common is None and None not in formats:
            raise ConfigError(
                "its inputs have different scales that are not powers of two; expected the same"
            )
        settled = [self.settle(each) for each in values]
        return [replace(each, number_format=common, is_rounded=True) for each in settled]

    def finish(self, outputs: Sequence[fx.Node]) -> fx.GraphModule:
        """Returns the module with the given outputs, whose layers have their formats."""
        self._graph.output(outputs[0] if len(outputs) == 1 else tuple(outputs))
        for path, spec in self.specs.items():
            layer = self.layer(path)
            if isinstance(layer, QuantizedOperator):
                self._root.add_module(path, layer.with_spec(spec))
            elif not spec.is_float:
                quantized = get_module_row(layer).quantized
                assert quantized is not None
                self._root.add_module(path, quantized.from_float(layer, spec))
        model = fx.GraphModule(self._root, self._graph, "QonnxModel").eval()
        model.meta |= {SHAPES: dict(self._shapes), RANGES: dict(self._ranges)}
        return model


def _find_input(node: fx.Node) -> str | None:
    """Returns the name of the model's input that a node only moves; None for other nodes."""
    while node.op == "call_method":
        node = node.all_input_nodes[0]
    return str(node.target) if node.op == "placeholder" else None
