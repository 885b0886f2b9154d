"""Exporter: runs torch's on a graph and gives inputs, outputs and axes their names."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from chop.capture.dead_code import remove_autocast
from chop.errors import GraphError
from chop.files import atomic_file
from chop.ir.graph import MaseGraph
from chop.ir.propagate import example_inputs
from chop.logs import at_level
from chop.onnx.operators import OPSET, translations

DEQUANTIZE = "DequantizeLinear"


def write(mg: MaseGraph, path: Path, dynamic: bool) -> dict[str, Any]:
    """Writes a graph without formats as an ONNX file.

    Args:
        mg: the graph, on a CPU; its output is rewritten.
        path: the file.
        dynamic: axes may have other sizes than in the example inputs, where the model allows it.
    Returns: `{"inputs": names, "outputs": names}`.
    Raises:
        GraphError: torch's exporter lacks the ONNX of an operator.
    """
    outputs = _plain_outputs(mg)
    inputs = _read_inputs(mg)
    inputs = _several_rows(inputs) if dynamic else inputs
    remove_autocast(mg.fx_graph)
    model = fx.GraphModule(mg.model, mg.fx_graph).eval()
    shapes = _varying_axes(inputs) if dynamic else None
    with _silence(), torch.no_grad():
        program = torch.export.export(model, (), inputs, dynamic_shapes=shapes, strict=False)
        proto = _proto(program, outputs)
    _strip(proto)
    _one_reader_each(proto)
    _one_zero_point_each(proto)
    _name_axes(proto)
    with atomic_file(path) as temporary:
        Path(temporary).write_bytes(proto.SerializeToString())
    ends = {"inputs": proto.graph.input, "outputs": proto.graph.output}
    return {end: [x.name for x in found] for end, found in ends.items()}


def _proto(program: torch.export.ExportedProgram, outputs: list[str] | None) -> Any:
    try:
        written = torch.onnx.export(
            program,
            custom_translation_table=translations(),
            output_names=outputs,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    except torch.onnx.OnnxExporterError as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise GraphError(
            f"export_onnx_interface_pass: torch cannot write this graph as ONNX: {cause}"
        ) from error
    assert written is not None
    return written.model_proto


def _plain_outputs(mg: MaseGraph) -> list[str] | None:
    """Makes an output of Hugging Face a tuple; the names of its tensors, None if it is no such.

    A loss is left out: who runs the file has no labels.
    """
    (output,) = (node for node in mg.nodes if node.op == "output")
    answer = output.args[0]
    if not isinstance(answer, fx.Node) or answer.op != "call_function" or not answer.kwargs:
        return None
    kept = {k: v for k, v in answer.kwargs.items() if isinstance(v, fx.Node) and k != "loss"}
    output.args = (tuple(kept.values()),)
    mg.fx_graph.eliminate_dead_code()
    return list(kept)


def _read_inputs(mg: MaseGraph) -> dict[str, Tensor]:
    """Example inputs of what the graph reads; placeholders that nothing reads are erased."""
    examples = example_inputs(mg.model)
    for node in mg.nodes:
        if node.op == "placeholder" and not node.users:
            mg.fx_graph.erase_node(node)
            examples.pop(str(node.target), None)
    return examples


def _several_rows(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """A batch of one, twice: the exporter takes an axis of one for a constant."""
    if any(x.dim() == 0 or len(x) != 1 for x in inputs.values()):
        return inputs
    return {name: torch.cat([x, x]) for name, x in inputs.items()}


def _varying_axes(inputs: dict[str, Tensor]) -> dict[str, dict[int, Any]]:
    """Which axes may vary, where the model does not pin them: batches and lengths.

    The second axis is a length in token ids and boolean masks, and where it is as long in others.
    """
    auto = torch.export.Dim.AUTO
    lengths = {x.shape[1] for x in inputs.values() if x.dim() > 1 and not x.is_floating_point()}
    return {
        name: {a: auto for a, size in enumerate(x.shape[:2]) if a == 0 or size in lengths}
        for name, x in inputs.items()
    }


def _strip(proto: Any) -> None:
    """Leaves out where each node came from, which can take more bytes than the weights."""
    for part in (proto.graph, *proto.graph.node, *proto.graph.value_info, *proto.graph.initializer):
        del part.metadata_props[:]
        part.doc_string = ""


def _one_reader_each(proto: Any) -> None:
    """Gives each reader of codes a DequantizeLinear of its own: runtimes fuse no shared ones."""
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

    onnxruntime, where it makes codes unsigned, writes each layer's zero point under a name that it
    derives from the old one, and fails where that is there already.
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


def _name_axes(proto: Any) -> None:
    """Calls the first axis `batch` and the second `sequence`, instead of symbols."""
    names: dict[str, str] = {}
    for value in proto.graph.input:
        dims = value.type.tensor_type.shape.dim
        for name, dim in zip(("batch", "sequence"), dims, strict=False):
            if dim.dim_param:
                names.setdefault(dim.dim_param, name)
    for value in [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]


@contextmanager
def _silence() -> Iterator[None]:
    """The exporter warns of what does not concern a user: packages that are absent, own changes."""
    with at_level(logging.ERROR, "torch.onnx"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
