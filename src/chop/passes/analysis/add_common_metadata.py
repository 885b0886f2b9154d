"""Notes what each node is, and the shape and dtype of all that flows through it."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from chop.ir.graph import MaseGraph, metadata_of
from chop.ir.metadata import CommonMetadata, MaseMetadata, TensorInfo, operand_of
from chop.ir.ops import Operator
from chop.ir.propagate import example_inputs, propagate
from chop.nn.quantized import QuantizedOperator
from chop.passes.base import graph_pass

log = logging.getLogger(__name__)

PARAMETERS = ("weight", "bias")


@dataclass(frozen=True)
class CommonMetadataConfig:
    """Settings of `add_common_metadata_analysis_pass`.

    Attributes:
        dummy_in: example inputs by name; None takes inputs like those of the capture. A graph from
            guessed inputs that does not hold for them is captured again from them.
        add_value: also keeps the values that flow; this runs the model once.
        force_device_meta: accepted for MASE's sake; shapes never need real memory here.
    """

    dummy_in: Mapping[str, Any] | None = None
    add_value: bool = False
    force_device_meta: bool = False


@graph_pass(config=CommonMetadataConfig, requires=("init_metadata_analysis_pass",))
def add_common_metadata_analysis_pass(
    mg: MaseGraph, config: CommonMetadataConfig
) -> dict[str, Any]:
    """Fills `common`: operator, type, and shape and dtype of every argument and result.

    Shapes come from a run on fake tensors, which costs neither arithmetic nor memory.
    """
    if config.dummy_in is not None:
        if mg.fit(config.dummy_in):
            for node in mg.nodes:
                node.meta["mase"] = MaseMetadata()
    elif mg.model.record.guessed:
        _say_guessed(repr({n: s.shape for n, s in mg.model.record.example_inputs.items()}))
    inputs = example_inputs(mg.model) if config.dummy_in is None else config.dummy_in
    results: dict[fx.Node, Any] = {}

    def note(node: fx.Node, result: Any) -> None:
        results[node] = result
        metadata_of(node).common.update(describe(mg, node, results, config.add_value))

    propagate(mg.model, inputs, note, with_values=config.add_value)
    return {}


@functools.cache
def _say_guessed(shapes: str) -> None:
    log.warning(
        "the inputs of the graph were guessed: %s; for others pass dummy_in={...} to MaseGraph or "
        "to add_common_metadata_analysis_pass",
        shapes,
    )


def describe(
    mg: MaseGraph, node: fx.Node, results: Mapping[fx.Node, Any], keep_values: bool = False
) -> CommonMetadata:
    """What `common` has to say about a node.

    Args:
        mg: the graph.
        node: one of its nodes.
        results: what that node and those before it return.
        keep_values: keeps the tensors as well.
    """
    operator = mg.operator(node)
    common = CommonMetadata(operator.name, operator.mase_type)
    common.args = _arguments(node, operator, results, keep_values)
    common.results = {
        f"data_out_{i}": TensorInfo.of(x, keep_values)
        for i, x in enumerate(tensors_in(results[node]))
    }
    module = mg.module_of(node)
    for name in PARAMETERS if module is not None else ():
        parameter = getattr(module, name, None)
        if isinstance(parameter, Tensor):
            common.args[name] = TensorInfo.of(parameter, keep_values)
    if isinstance(module, QuantizedOperator):
        _record_formats(common, module)
    return common


def record_formats(node: fx.Node, module: QuantizedOperator) -> None:
    """Notes in a node's metadata the formats of the quantised module that it calls."""
    _record_formats(metadata_of(node).common, module)


def _record_formats(common: CommonMetadata, module: QuantizedOperator) -> None:
    for name, info in common.args.items():
        if isinstance(info, TensorInfo) and info.is_floating:
            info.record_format(module.spec.number_format(operand_of(name, module)))
    for info in common.results.values():
        if info.is_floating:
            info.record_format(module.spec.number_format("data_out"))


def argument_tensors(
    node: fx.Node, operator: Operator, results: Mapping[fx.Node, Any]
) -> dict[str, Tensor]:
    """The tensors that a node reads, by the names that `CommonMetadata.args` gives them.

    Args:
        node: the node.
        operator: its row of the operator table.
        results: values of the nodes that it reads.
    """
    return {
        key: tensor
        for _, _, tensors in _named_arguments(node, operator, results)
        for key, tensor in tensors.items()
    }


def _arguments(
    node: fx.Node, operator: Operator, results: Mapping[fx.Node, Any], keep: bool
) -> dict[str, Any]:
    """Tensors by `argument_tensors`; what is no tensor keeps its name or gets a position."""
    described: dict[str, Any] = {}
    for name, value, tensors in _named_arguments(node, operator, results):
        described.update({key: TensorInfo.of(x, keep) for key, x in tensors.items()})
        if not tensors:
            described[name] = value
    return described


def _named_arguments(
    node: fx.Node, operator: Operator, results: Mapping[fx.Node, Any]
) -> Iterator[tuple[str, Any, dict[str, Tensor]]]:
    """(name, value, tensors in it) of each argument.

    Parameters are `weight` and `bias`, other tensors `data_in_0` ... in order.
    """
    counter = itertools.count()
    positions = [*operator.arguments, *(f"arg_{i}" for i in range(len(node.args)))]
    for name, given in [*zip(positions, node.args, strict=False), *node.kwargs.items()]:
        value = fx.node.map_arg(given, lambda n: results[n])
        is_parameter = isinstance(given, fx.Node) and given.op == "get_attr"
        operand = operator.arguments.get(name)
        named = is_parameter and operand in PARAMETERS
        tensors = {
            str(operand) if named else f"data_in_{next(counter)}": x for x in tensors_in(value)
        }
        yield name, value, tensors


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in a value, nested containers included, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
