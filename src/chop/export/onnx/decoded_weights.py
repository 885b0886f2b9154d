"""Weights of a file as its engine decodes them, used to verify that a file has the graph's codes.

Constants are named by the path of their module. A value that depends on constants only, up to the
first operator that reads inputs, is a weight. Products from codes are evaluated on the identity
matrix, and embeddings on all indices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from chop.base.reach import reached
from chop.export.onnx import session
from chop.export.onnx.session import openvino_settings

CODES, STEPS, OFFSETS = "codes", "steps", "offsets"
"""Suffixes of an embedding's constants, see `chop.export.onnx.grouped.CodedEmbedding`."""
MULTIPLY, GATHER = "MatMulNBits", "GatherBlockQuantized"
FOLDED = "torch's exporter folds batch norms into weights that the file stores as floats"
"""Reason why a weight may differ."""
TURNS = ("Transpose",)
"""Operators on constants that change the shape of a weight."""
RESULT = "result"


class Op(NamedTuple):
    """Operator of a graph.

    Attributes:
        kind: operator type, such as "Gather".
        inputs: names of input values.
        outputs: names of output values.
    """

    kind: str
    inputs: Sequence[str]
    outputs: Sequence[str]


def _constant_ends(ops: Iterable[Op], constants: Iterable[str]) -> dict[str, list[str]]:
    """Returns values that depend on constants only and have other readers, by module path.

    Args:
        ops: operators in topological order.
        constants: names of constants, which begin with the path of their module.
    """
    owners = {name: name.rpartition(".")[0] for name in constants}
    ends: dict[str, list[str]] = {}
    for op in ops:
        given = [name for name in op.inputs if name]
        if given and all(name in owners for name in given) and op.kind not in TURNS:
            # Codes come first, and steps, which several modules may share, behind them.
            owners |= dict.fromkeys(op.outputs, owners[given[0]])
            continue
        for name in given:
            if owners.get(name):
                ends.setdefault(owners[name], []).append(name)
    return {path: [*dict.fromkeys(names)] for path, names in ends.items()}


def _weights(
    ends: Mapping[str, Sequence[str]], value: Callable[[str], Tensor | None]
) -> dict[str, Tensor]:
    """Returns the weight of each module from `_constant_ends` and a lookup of values."""
    weights: dict[str, Tensor] = {}
    for path, names in ends.items():
        weight = _looked_up(path, value)
        if weight is None:
            weight = _largest(x for name in names if (x := value(name)) is not None)
        if weight is not None:
            weights[path] = weight
    return weights


def _largest(values: Iterable[Tensor]) -> Tensor | None:
    """Returns the largest tensor: a bias has fewer values than a weight."""
    floats = [x for x in values if x.is_floating_point() and x.dim()]
    return max(floats, key=lambda x: (x.dim() > 1, x.numel()), default=None)


def _looked_up(path: str, value: Callable[[str], Tensor | None]) -> Tensor | None:
    """Returns an embedding that is decoded row by row."""
    codes, steps = (value(f"{path}.{end}") for end in (CODES, STEPS))
    if codes is None or steps is None or codes.dtype != torch.int8:
        return None
    values = codes.float().unflatten(1, (steps.size(1), -1)) * steps.unsqueeze(-1)
    offsets = value(f"{path}.{OFFSETS}")
    if offsets is not None:
        values = values + offsets.unsqueeze(-1)
    weights: Tensor = values.flatten(1)
    return weights


def onnx_weights(path: Path) -> dict[str, Tensor]:
    """Returns weights by module path as onnxruntime decodes them; rows may end in zeros."""
    import onnx
    from onnx import numpy_helper

    proto = onnx.load(path)
    stored = {each.name: each for each in proto.graph.initializer}
    ops = [Op(node.op_type, node.input, node.output) for node in proto.graph.node]
    ends = _constant_ends(ops, stored)
    computed = _computed(proto, [x for names in ends.values() for x in names if x not in stored])

    def value(name: str) -> Tensor | None:
        if name not in stored:
            return computed.get(name)
        return torch.from_numpy(numpy_helper.to_array(stored[name]).copy())

    return _weights(ends, value) | _from_codes(proto, stored)


def _computed(proto: Any, names: Sequence[str]) -> dict[str, Tensor]:
    """Evaluates values of a graph that depend on no input, by onnxruntime."""
    from onnx import TensorProto, helper

    if not names:
        return {}
    makers = {name: node for node in proto.graph.node for name in node.output if name}
    needed = {*reached(names, lambda name: makers[name].input if name in makers else ())}
    nodes = [node for node in proto.graph.node if needed & makers.keys() & {*node.output}]
    outputs = [helper.make_tensor_value_info(x, TensorProto.FLOAT, None) for x in names]
    return dict(zip(names, _run(proto, nodes, [], outputs, {}), strict=True))


def _from_codes(proto: Any, stored: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns weights of operators that compute from codes stored without zero points."""
    from onnx import TensorProto, helper

    weights: dict[str, Tensor] = {}
    result = [helper.make_tensor_value_info(RESULT, TensorProto.FLOAT, None)]
    for node in proto.graph.node:
        if node.op_type not in (MULTIPLY, GATHER):
            continue
        codes = node.input[1] if node.op_type == MULTIPLY else node.input[0]
        owner = codes.rpartition(".")[0]
        if f"{owner}.{OFFSETS}_io" in stored:
            continue
        if node.op_type == MULTIPLY:
            columns = next(each.i for each in node.attribute if each.name == "K")
            given, dtype = torch.eye(columns), TensorProto.FLOAT
        else:
            given, dtype = torch.arange(stored[codes].dims[0]), TensorProto.INT64
        place = 0 if node.op_type == MULTIPLY else 1
        probe = helper.make_node(node.op_type, node.input, [RESULT], domain=node.domain)
        probe.input[place] = "given"
        probe.attribute.extend(node.attribute)
        inputs = [helper.make_tensor_value_info("given", dtype, [*given.shape])]
        (values,) = _run(proto, [probe], inputs, result, {"given": given})
        weights[owner] = values
    return weights


def _run(
    proto: Any, nodes: Sequence[Any], inputs: Any, outputs: Any, given: Mapping[str, Tensor]
) -> list[Tensor]:
    """Runs selected nodes of a graph."""
    from onnx import helper

    read = {name for node in nodes for name in node.input}
    constants = [each for each in proto.graph.initializer if each.name in read]
    graph = helper.make_graph(nodes, "weights", inputs, outputs, constants)
    part = helper.make_model(graph, opset_imports=proto.opset_import, ir_version=proto.ir_version)
    return session.run(part, given)


def openvino_weights(path: Path) -> dict[str, Tensor]:
    """Returns weights by module path as OpenVINO decodes them; rows may be padded with zeros.

    Args:
        path: path of files that chop wrote.
    """
    import openvino

    core = openvino.Core()
    nodes = core.read_model(path).get_ordered_ops()
    stored = {x.get_friendly_name(): x for x in nodes if x.get_type_name() == "Constant"}
    ports = {_port(port): port for node in nodes for port in node.outputs()}
    names = {_port(node.output(0)): name for name, node in stored.items()}
    ops = [
        Op(
            node.get_type_name(),
            [names.get(x, x) for x in (_port(y.get_source_output()) for y in node.inputs())],
            [_port(port) for port in node.outputs()],
        )
        for node in nodes
        if node.get_type_name() != "Constant"
    ]
    ends = _constant_ends(ops, stored)
    computed = [x for given in ends.values() for x in given if x not in stored]
    values: dict[str, Tensor] = {}
    if computed:
        model = openvino.Model([ports[x] for x in computed], [], "weights")
        results = core.compile_model(model, "CPU", openvino_settings())([])
        values = {x: torch.from_numpy(results[i].copy()) for i, x in enumerate(computed)}

    def value(name: str) -> Tensor | None:
        if name not in stored:
            return values.get(name)
        data = stored[name].data
        return torch.from_numpy(data.copy()) if data.dtype.kind in "fi" else None

    return _weights(ends, value)


def _port(port: Any) -> str:
    return f"{port.get_node().get_friendly_name()}:{port.get_index()}"
