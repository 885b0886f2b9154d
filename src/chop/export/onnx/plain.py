"""Conversion of QONNX nodes to plain ONNX for onnxruntime, which lacks that domain."""

from __future__ import annotations

from typing import Any

from chop.export.onnx.operators import BIPOLAR, QONNX

ROUNDINGS = {b"ROUND": "Round", b"FLOOR": "Floor"}


def in_plain_operators(proto: Any, rounds: bool) -> Any:
    """Returns a copy with ONNX operators in place of QONNX operators.

    Args:
        proto: `onnx.ModelProto`.
        rounds: False to clamp to the range of nodes without rounding.
    """
    from onnx import ModelProto, numpy_helper

    plain = ModelProto()
    plain.CopyFrom(proto)
    del plain.graph.node[:]
    values = {each.name: each for each in proto.graph.initializer}
    for node in proto.graph.node:
        if node.domain != QONNX:
            plain.graph.node.append(node)
        elif node.op_type == BIPOLAR:
            plain.graph.node.extend(_signs(node) if rounds else _scaled(node, -1, 1))
        else:
            width = int(numpy_helper.to_array(values[node.input[3]]))
            plain.graph.node.extend(_steps(node, width, rounds))
    return plain


def _steps(node: Any, width: int, rounds: bool) -> list[Any]:
    """Returns the operators of Quant: integers of its range, times the scale."""
    from onnx import helper

    given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    high = 2 ** (width - given["signed"]) - 1
    low = given["narrow"] - high - 1 if given["signed"] else 0
    return _scaled(node, low, high, ROUNDINGS[given["rounding_mode"]] if rounds else "Identity")


def _scaled(node: Any, low: int, high: int, rounding: str = "Identity") -> list[Any]:
    from onnx import helper

    (y,), (x, scale) = node.output, node.input[:2]
    bottom, top, quotient, clamped, whole = (f"{y}/{part}" for part in range(5))
    return [
        helper.make_node("Constant", [], [bottom], value_float=float(low)),
        helper.make_node("Constant", [], [top], value_float=float(high)),
        helper.make_node("Div", [x, scale], [quotient]),
        helper.make_node("Clip", [quotient, bottom, top], [clamped]),
        helper.make_node(rounding, [clamped], [whole]),
        helper.make_node("Mul", [whole, scale], [y]),
    ]


def _signs(node: Any) -> list[Any]:
    """Returns the operators of BipolarQuant: the scale for x >= 0, otherwise its negative."""
    from onnx import helper

    (y,), (x, scale) = node.output, node.input
    zero, is_upper, lower = (f"{y}/{part}" for part in range(3))
    return [
        helper.make_node("Constant", [], [zero], value_float=0.0),
        helper.make_node("GreaterOrEqual", [x, zero], [is_upper]),
        helper.make_node("Neg", [scale], [lower]),
        helper.make_node("Where", [is_upper, scale, lower], [y]),
    ]
