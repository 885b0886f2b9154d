"""Conversion of a flat graph to ONNX by torch's exporter, with changes that runtimes need."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch

from chop.base.notices import at_level
from chop.errors import ChopError, GraphError, first_line, shorten
from chop.export.graphs.axes import BATCH, SEQUENCE, AxisNames
from chop.export.graphs.flat import WHERE, FlatGraph
from chop.export.onnx.decode import expand_decoding
from chop.export.onnx.masks import hide_by_infinity
from chop.export.onnx.operators import DEQUANTIZE
from chop.export.onnx.translations import OPSET, translations
from chop.nn.sparsity import PruneActivation

LOGGERS = ("torch.onnx", "torch._export", "torch.export", "onnxscript", "onnx_ir")


def build_proto(
    flat: FlatGraph,
    varying: Mapping[str, Sequence[int]] | None,
    names: Mapping[str, AxisNames] = MappingProxyType({}),
) -> Any:
    """Returns the ONNX form of a flat graph without formats.

    Args:
        flat: graph on a CPU.
        varying: axes by input that may vary, if torch's exporter supports it; None for no axis.
        names: axis names by input or output; by default those of `_name_axes`.
    Returns: an `onnx.ModelProto`.

    Raises:
        GraphError: if torch's exporter does not support an operator.
    """
    inputs, auto, shapes = flat.inputs, torch.export.Dim.AUTO, None
    if varying is not None:
        shapes = {"tensors": tuple(dict.fromkeys(varying[name], auto) for name in inputs)}
    with _silence(), torch.no_grad():
        proto = _proto(flat, shapes)
    expand_decoding(proto)
    hide_by_infinity(proto)
    _strip(proto)
    _name_outputs(proto, flat.outputs)
    _drop_unread_inputs(proto)
    _one_reader_each(proto)
    _one_zero_point_each(proto)
    _name_axes(proto, names)
    return proto


def _proto(flat: FlatGraph, shapes: Any) -> Any:
    # torch's symbolic shapes are imported where something is traced.
    from chop.private.symbolic_shapes import forgetting_traces, recurrent_shapes

    with forgetting_traces(), recurrent_shapes():
        return _traced(flat, shapes)


def _traced(flat: FlatGraph, shapes: Any) -> Any:
    try:
        program = torch.export.export(
            flat.module, tuple(flat.inputs.values()), dynamic_shapes=shapes, strict=False
        )
        written = torch.onnx.export(
            program,
            custom_translation_table=translations(),
            input_names=[*flat.inputs],
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    except ChopError:
        raise
    except Exception as error:
        # What torch's exporter and its own libraries raise has no class in common.
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        way_out = "express the operator differently"
        if shapes is not None and not isinstance(error, torch.onnx.OnnxExporterError):
            way_out = f"try it with dynamic_axes=False, or {way_out}"
        if any(isinstance(each, PruneActivation) for each in flat.module.modules()):
            way_out = (
                "its activations are pruned; prune weights only, or remove the pruners with "
                "prune_detach_hook_transform_pass"
            )
        raise GraphError(
            f"{WHERE}: torch cannot write this graph as ONNX: "
            f"{shorten(first_line(cause), 300)}; {way_out}."
        ) from error
    assert written is not None
    return written.model_proto


def _name_outputs(proto: Any, names: list[str]) -> None:
    """Names the outputs, and renames intermediate values with the same names.

    torch's exporter would leave two values of one name.
    """
    given = [each.name for each in proto.graph.output]
    inner = {name for node in proto.graph.node for name in node.output} - {*given}
    renamed = {name: f"{name}/inner" for name in names if name in inner}
    renamed |= dict(zip(given, names, strict=True))
    for node in proto.graph.node:
        for ends in (node.input, node.output):
            ends[:] = [renamed.get(name, name) for name in ends]
    for value in (*proto.graph.output, *proto.graph.value_info, *proto.graph.initializer):
        value.name = renamed.get(value.name, value.name)


def _drop_unread_inputs(proto: Any) -> None:
    """Removes unused parts of nested inputs, which a session would require."""
    read = {name for node in proto.graph.node for name in node.input}
    inputs = [each for each in proto.graph.input if each.name in read]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)


def _strip(proto: Any) -> None:
    """Removes the source locations of nodes, which can take more bytes than the weights."""
    for part in (proto.graph, *proto.graph.node, *proto.graph.value_info, *proto.graph.initializer):
        del part.metadata_props[:]
        part.doc_string = ""


def _one_reader_each(proto: Any) -> None:
    """Gives each reader of codes its own DequantizeLinear: runtimes do not fuse shared ones."""
    from onnx import NodeProto

    shared = {node.output[0]: node for node in proto.graph.node if node.op_type == DEQUANTIZE}
    seen: Counter[str] = Counter()
    nodes: list[Any] = []
    for node in proto.graph.node:
        for position, name in enumerate(node.input):
            if name not in shared:
                continue
            seen[name] += 1
            if seen[name] > 1:
                twin = NodeProto()
                twin.CopyFrom(shared[name])
                twin.name = twin.output[0] = node.input[position] = f"{name}/{seen[name]}"
                nodes.append(twin)
        nodes.append(node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


def _one_zero_point_each(proto: Any) -> None:
    """Undoes the exporter's sharing of equal constants.

    When onnxruntime makes codes unsigned, it writes each layer's zero point under a name derived
    from the old one, and fails if that name exists.
    """
    from onnx import TensorProto

    constants = {each.name: each for each in proto.graph.initializer}
    seen: set[str] = set()
    for node in proto.graph.node:
        if node.op_type != DEQUANTIZE or node.input[0] not in constants:
            continue
        name = node.input[2]
        if name in seen:
            twin = TensorProto()
            twin.CopyFrom(constants[name])
            twin.name = node.input[2] = f"{node.name}.zero_point"
            proto.graph.initializer.append(twin)
        seen.add(name)


def _name_axes(proto: Any, given: Mapping[str, AxisNames]) -> None:
    """Names dynamic axes: the first `BATCH`, the second `SEQUENCE`.

    Args:
        proto: file, which is changed.
        given: other names by input or output.
    """
    names: dict[str, str] = {}
    plain = {0: BATCH, 1: SEQUENCE}
    for value in proto.graph.input:
        for axis, name in given.get(value.name, plain).items():
            dims = value.type.tensor_type.shape.dim[axis : axis + 1]
            names |= {dim.dim_param: name for dim in dims if dim.dim_param not in {"", *names}}
    for value in [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]
    for value in proto.graph.output:
        for axis, name in given.get(value.name, {}).items():
            # Of a sum of sizes the exporter writes an expression.
            value.type.tensor_type.shape.dim[axis].dim_param = name


@contextmanager
def _silence() -> Iterator[None]:
    """Silences exporter warnings that do not concern users, such as missing packages."""
    with at_level(logging.ERROR, *LOGGERS), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
