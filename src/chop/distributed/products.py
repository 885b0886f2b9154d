"""Matrix products by a parameter, with the tensors along their outputs and inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn

from chop.distributed.placements import REPLICATED, sharded
from chop.distributed.plan import Placements, named_tensors
from chop.distributed.strategies import has_cut_scales, shardable_dims
from chop.formats import NumberFormat
from chop.ir.graph import MaseGraph
from chop.ir.ops import Weight
from chop.nn.packed import PackedOperator
from chop.nn.packed.state import BUFFER_NAMES
from chop.nn.quantized import QuantizedOperator
from chop.nn.quantized.masks import MASK_BUFFERS
from chop.nn.quantized.state import SCALE_NAMES
from chop.private.modules import own_parameters


@dataclass(frozen=True)
class Product:
    """A linear layer, or a function that multiplies by a parameter.

    Attributes:
        node: the call.
        data_in: node of the other factor.
        outputs: number of outputs.
        inputs: number of inputs, the length of the sums.
        along_outputs: dimension of each parameter and buffer that is sharded with the outputs;
            empty if the weight's format does not allow it.
        along_inputs: the same for the inputs.
        output_multiple: multiple of outputs at which a cut is allowed.
        input_multiple: multiple of inputs at which a cut is allowed.
    """

    node: fx.Node
    data_in: fx.Node
    outputs: int
    inputs: int
    along_outputs: Mapping[str, int] = field(default_factory=dict)
    along_inputs: Mapping[str, int] = field(default_factory=dict)
    output_multiple: int = 1
    input_multiple: int = 1

    def columns(self, processes: int) -> bool:
        """Returns whether outputs divide among the processes."""
        return bool(self.along_outputs) and self.outputs % (processes * self.output_multiple) == 0

    def rows(self, processes: int) -> bool:
        """Returns whether inputs divide among the processes."""
        return bool(self.along_inputs) and self.inputs % (processes * self.input_multiple) == 0


def placements(dims: Mapping[str, int], mesh: tuple[int, ...]) -> dict[str, Placements]:
    """Returns parameters sharded along the last axis of a mesh, and replicated along the others."""
    others = (REPLICATED,) * (len(mesh) - 1)
    return {path: (*others, sharded(dim)) for path, dim in dims.items()}


def list_products(mg: MaseGraph) -> list[Product]:
    """Returns the matrix products by a parameter, in graph order.

    Convolutions and experts are excluded, and stay whole on each process.
    """
    return [product for node in mg.nodes if (product := _get_product(mg, node)) is not None]


def _get_product(mg: MaseGraph, node: fx.Node) -> Product | None:
    """Returns the product of a node; None if it does not multiply by a parameter."""
    row, module = mg.operator(node), mg.get_module(node)
    if module is None:
        return _function(mg, node)
    weight = row.weight
    if weight is None or weight.is_table or weight.has_experts or row.spatial:
        return None
    if not node.all_input_nodes:
        return None
    return _layer(node, module, weight)


def _layer(node: fx.Node, module: Any, weight: Weight) -> Product | None:
    outputs, inputs = (getattr(module, name, None) for name in weight.sizes)
    if not isinstance(outputs, int) or not isinstance(inputs, int):
        return None
    path, data_in = str(node.target), node.all_input_nodes[0]
    if isinstance(module, PackedOperator):
        names = _rows_of_codes(module)
        return Product(node, data_in, outputs, inputs, _paths(module, path, names))
    shape = (outputs, inputs) if not weight.is_transposed else (inputs, outputs)
    number_format = _format(module, "weight")
    multiples = shardable_dims(number_format, shape) if number_format else {0: 1, 1: 1}
    by_channel = number_format is not None and has_cut_scales(number_format, shape)
    if by_channel:
        multiples = {0: 1}
    matrix = {"weight", *MASK_BUFFERS}
    columns, rows = {}, {}
    if weight.outputs in multiples:
        columns = dict.fromkeys(matrix, weight.outputs)
        if _bias_can_be_cut(module, outputs):
            columns["bias"] = 0
        if _scale_count(module) > 1:
            columns[SCALE_NAMES["weight"]] = 0
    # `chop::lsq_fake_quantize` has a rule for channel scales along dimension 0 only.
    if weight.inputs in multiples and _scale_count(module) <= 1:
        rows = dict.fromkeys(matrix, weight.inputs)
    return Product(
        node,
        data_in,
        outputs,
        inputs,
        _paths(module, path, columns),
        _paths(module, path, rows),
        multiples.get(weight.outputs, 1),
        multiples.get(weight.inputs, 1),
    )


def _rows_of_codes(module: PackedOperator) -> dict[str, int]:
    """Returns the buffers of packed parameters, and a float bias, if rows have separate bytes."""
    separable = {
        operand
        for operand, shape in module.packed_shapes.items()
        if module.spec.number_format(operand).is_row_separable(shape)
    }
    if "weight" not in separable:
        return {}
    names = {} if "bias" in module.packed_shapes else {"bias": 0}
    for operand in separable:
        codes, scales, _ = BUFFER_NAMES[operand]
        names |= {codes: 0, scales: 0}
    return names


def _paths(module: nn.Module, path: str, names: Mapping[str, int]) -> dict[str, int]:
    present = {name for name, _ in named_tensors(module)}
    return {f"{path}.{name}": dim for name, dim in names.items() if name in present}


def _format(module: nn.Module, operand: str) -> NumberFormat | None:
    if not isinstance(module, QuantizedOperator) or module.spec.learns(operand):
        return None
    number_format = getattr(module.spec, operand)
    return number_format if isinstance(number_format, NumberFormat) else None


def _bias_can_be_cut(module: Any, outputs: int) -> bool:
    """Returns whether a bias can be cut anywhere, unlike one whose elements share scales."""
    number_format = _format(module, "bias")
    if number_format is None or getattr(module, "bias", None) is None:
        return True
    return shardable_dims(number_format, (outputs,)).get(0) == 1


def _scale_count(module: nn.Module) -> int:
    scales = own_parameters(module).get(SCALE_NAMES["weight"])
    return 0 if scales is None else scales.numel()


def _function(mg: MaseGraph, node: fx.Node) -> Product | None:
    where = mg.operator(node).weight_arguments
    if where is None or len(node.args) <= max(where.data_in, where.weight):
        return None
    weight, data_in = node.args[where.weight], node.args[where.data_in]
    if (
        not isinstance(weight, fx.Node)
        or weight.op != "get_attr"
        or not isinstance(data_in, fx.Node)
    ):
        return None
    tensor = mg.model.get_parameter(str(weight.target))
    bias = node.args[where.bias] if len(node.args) > where.bias else None
    columns = {str(weight.target): where.axes.outputs}
    if isinstance(bias, fx.Node) and bias.op == "get_attr":
        columns[str(bias.target)] = 0
    sizes = tensor.shape[where.axes.outputs], tensor.shape[where.axes.inputs]
    rows = {str(weight.target): where.axes.inputs}
    return Product(node, data_in, *sizes, columns, rows)
