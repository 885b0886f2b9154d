"""ONNX operators for constants that `onnx_decode` decodes.

The exporter would evaluate the decoding and store floats.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

DOMAIN, DECODE = "chop", "Decode"
"""Domain and name of the operator that the exporter writes, and that is expanded later."""


def expand_decoding(proto: Any) -> None:
    """Replaces decoding nodes by ONNX operators.

    Args:
        proto: `onnx.ModelProto`; it is changed.
    """
    shapes = {each.name: list(each.dims) for each in proto.graph.initializer}
    nodes: list[Any] = []
    for node in proto.graph.node:
        is_one = (node.domain, node.op_type) == (DOMAIN, DECODE)
        nodes += _operators(proto, node, shapes[node.input[0]]) if is_one else [node]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    others = [each for each in proto.opset_import if each.domain != DOMAIN]
    del proto.opset_import[:]
    proto.opset_import.extend(others)


def _operators(proto: Any, node: Any, shape: list[int]) -> Iterator[Any]:
    """Returns Cast, Mul, Add for offsets, Reshape, and Slice for padded rows."""
    from onnx import TensorProto, helper

    result, (columns,) = node.output[0], (each.i for each in node.attribute)
    rows, groups, group = shape
    codes, steps, *offsets = (name for name in node.input if name)

    def constant(end: str, values: list[int]) -> str:
        name = f"{result}/{end}"
        tensor = helper.make_tensor(name, TensorProto.INT64, [len(values)], values)
        proto.graph.initializer.append(tensor)
        return name

    def step(kind: str, end: str, *inputs: str, **attributes: int) -> Any:
        name = f"{result}/{end}" if end else result
        return helper.make_node(kind, inputs, [name], name=f"{kind}/{name}", **attributes)

    yield step("Cast", "numbers", codes, to=TensorProto.FLOAT)
    yield step("Mul", "multiples", f"{result}/numbers", steps)
    values = f"{result}/multiples"
    if offsets:
        yield step("Add", "values", values, *offsets)
        values = f"{result}/values"
    is_whole = groups * group == columns
    to = constant("shape", [rows, groups * group])
    yield step("Reshape", "" if is_whole else "rows", values, to)
    if not is_whole:
        ends = (constant(end, [k]) for end, k in {"first": 0, "last": columns, "axis": 1}.items())
        yield step("Slice", "", f"{result}/rows", *ends)
