"""Shape, dtype and format annotation: fills the metadata section `common` of the nodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, fx, nn

from chop.base.nested import tree_tensors
from chop.captured.nodes.modes import mode_paths
from chop.formats import Float, NumberFormat
from chop.ir.graph import MaseGraph, node_metadata
from chop.ir.metadata import CommonMetadata, TensorInfo, get_operand
from chop.ir.ops import Operator
from chop.ir.propagate import propagate
from chop.nn.quantized import QuantizedOperator

PARAMETERS = ("weight", "bias")


def annotate(mg: MaseGraph, inputs: Mapping[str, Any], with_values: bool = False) -> None:
    """Fills the metadata `common` of every node from a run of the graph.

    Args:
        mg: a graph whose nodes have metadata.
        inputs: example inputs by name.
        with_values: run the graph on real tensors and store the values. By default it runs on
            fake tensors, which costs no arithmetic and no memory.
    """
    results: dict[fx.Node, Any] = {}

    def note(node: fx.Node, result: Any) -> None:
        results[node] = result
        node_metadata(node).common.update(common_metadata(mg, node, results, with_values))

    propagate(mg.model, inputs, note, with_values)

    def note_rest(node: fx.Node, result: Any) -> None:
        if node in results:
            results[node] = result
        else:
            note(node, result)

    if mode_paths(mg.fx_graph):
        propagate(mg.model, inputs, note_rest, training=True)


def common_metadata(
    mg: MaseGraph, node: fx.Node, results: Mapping[fx.Node, Any], keep_values: bool = False
) -> CommonMetadata:
    """Returns the metadata `common` of one node: operator, arguments, results and formats."""
    operator = mg.operator(node)
    common = CommonMetadata(operator.name, operator.mase_type)
    common.args = _arguments(node, operator, results, keep_values)
    common.results = {
        f"data_out_{i}": TensorInfo.of(x, keep_values)
        for i, x in enumerate(tensors_in(results[node]))
    }
    module = mg.get_module(node)
    for name in PARAMETERS if module is not None else ():
        parameter = getattr(module, name, None)
        if isinstance(parameter, Tensor):
            common.args[name] = TensorInfo.of(parameter, keep_values)
    if isinstance(module, QuantizedOperator):
        _record_formats(common, module)
    return common


def record_formats(node: fx.Node, module: nn.Module) -> None:
    """Records the formats of the called module in a node's metadata; float if it has none."""
    common = node_metadata(node).common
    if isinstance(module, QuantizedOperator):
        _record_formats(common, module)
        return
    for info in (*common.args.values(), *common.results.values()):
        if isinstance(info, TensorInfo) and info.is_floating:
            info.record_format(Float())


def _record_formats(common: CommonMetadata, module: QuantizedOperator) -> None:
    for name, info in common.args.items():
        if isinstance(info, TensorInfo) and info.is_floating:
            info.record_format(module.spec.number_format(get_operand(name, module)))
    for info in common.results.values():
        if info.is_floating:
            info.record_format(module.spec.number_format("data_out"))


def operand_formats(
    mg: MaseGraph, node: fx.Node
) -> Iterator[tuple[str, tuple[int, ...], int, NumberFormat]]:
    """Returns (name, shape, bits of its dtype, format) for each floating argument of a node."""
    module = mg.get_module(node)
    for name, info in node_metadata(node).common.args.items():
        if isinstance(info, TensorInfo) and info.is_floating and info.torch_dtype is not None:
            number_format: NumberFormat = Float()
            if isinstance(module, QuantizedOperator):
                number_format = module.spec.number_format(get_operand(name, module))
            yield name, info.shape, info.torch_dtype.itemsize * 8, number_format


def argument_tensors(
    node: fx.Node, operator: Operator, results: Mapping[fx.Node, Any]
) -> dict[str, Tensor]:
    """Returns the argument tensors of a node under their names in `CommonMetadata.args`."""
    return {
        key: tensor
        for _, _, tensors in _named_arguments(node, operator, results)
        for key, tensor in tensors.items()
    }


def _arguments(
    node: fx.Node, operator: Operator, results: Mapping[fx.Node, Any], keep: bool
) -> dict[str, Any]:
    """Describes the arguments of a node. Non-tensors keep their own name or get a position."""
    described: dict[str, Any] = {}
    for name, value, tensors in _named_arguments(node, operator, results):
        described.update({key: TensorInfo.of(x, keep) for key, x in tensors.items()})
        if not tensors:
            described[name] = value
    return described


def _named_arguments(
    node: fx.Node, operator: Operator, results: Mapping[fx.Node, Any]
) -> Iterator[tuple[str, Any, dict[str, Tensor]]]:
    """Returns (name, value, tensors in it) for each argument.

    Parameters are `weight` and `bias`, other tensors `data_in_0` ... in order.
    """
    counter = itertools.count()
    positions = [*operator.call_arguments(node), *(f"arg_{i}" for i in range(len(node.args)))]
    for name, given in [*zip(positions, node.args, strict=False), *node.kwargs.items()]:
        value = fx.node.map_arg(given, results.get)  # None: a node of the other mode
        is_parameter = isinstance(given, fx.Node) and given.op == "get_attr"
        operand = operator.arguments.get(name)
        named = is_parameter and operand in PARAMETERS
        tensors = {
            str(operand) if named else f"data_in_{next(counter)}": x for x in tensors_in(value)
        }
        yield name, value, tensors


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Returns the tensors in nested containers, in order; ignores attributes of objects."""
    return tree_tensors(value, fields=False)
