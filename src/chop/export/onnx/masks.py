"""Attention masks in ONNX files: fully masked tokens get zeros, as in torch.

torch's exporter adds the lowest number to masked scores. A fully masked token, such as padding at
the beginning of a text, would get the mean of all tokens. The exporter tests for NaN, but only -inf
makes softmax return NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

HIDDEN = "/hidden"
"""Name suffix of a mask or number that hides scores by -inf."""


def hide_by_infinity(proto: Any) -> None:
    """Replaces the lowest number in attention masks by -inf.

    Args:
        proto: `onnx.ModelProto`; it is changed.
    """
    is_lowest = _lowest(proto)
    makers = {name: node for node in proto.graph.node for name in node.output}
    masks: dict[str, Any] = {}
    for added in _tested_sums(proto, makers):
        for place, name in enumerate(added.input):
            mask = makers.get(name)
            if mask is not None and mask.op_type == "Where" and is_lowest(mask.input[2]):
                masks[name] = mask
                added.input[place] = name + HIDDEN
    _add_masks(proto, masks)


def _tested_sums(proto: Any, makers: Mapping[str, Any]) -> list[Any]:
    """Returns sums with a softmax that is tested for NaN."""
    sums = []
    for node in proto.graph.node:
        tested = makers.get(node.input[0]) if node.op_type == "IsNaN" else None
        if tested is None or tested.op_type != "Softmax":
            continue
        added = makers.get(tested.input[0])
        if added is not None and added.op_type == "Add":
            sums.append(added)
    return sums


def _lowest(proto: Any) -> Callable[[str], bool]:
    """Returns a test whether a named constant is the lowest number of its dtype."""
    from onnx import TensorProto, numpy_helper

    dtypes = {
        TensorProto.FLOAT: torch.float32,
        TensorProto.DOUBLE: torch.float64,
        TensorProto.FLOAT16: torch.float16,
        TensorProto.BFLOAT16: torch.bfloat16,
    }
    constants = {each.name: each for each in proto.graph.initializer}

    def is_lowest(name: str) -> bool:
        constant = constants.get(name)
        if (
            constant is None
            or constant.data_type not in dtypes
            or [*constant.dims] not in ([], [1])
        ):
            return False
        value = float(numpy_helper.to_array(constant).astype("float64").item())
        return value == torch.finfo(dtypes[constant.data_type]).min

    return is_lowest


def _add_masks(proto: Any, masks: Mapping[str, Any]) -> None:
    """Adds masks of -inf after the masks that they replace, and removes unused ones."""
    from onnx import NodeProto, helper

    read = {name for node in proto.graph.node for name in node.input}
    read |= {each.name for each in proto.graph.output}
    types = {each.name: each.data_type for each in proto.graph.initializer}
    numbers: dict[str, Any] = {}
    nodes: list[Any] = []
    for node in proto.graph.node:
        name = node.output[0]
        if name not in masks or name in read:
            nodes.append(node)
        if name in masks:
            twin = NodeProto()
            twin.CopyFrom(node)
            twin.name, twin.output[0] = node.name + HIDDEN, name + HIDDEN
            lowest = node.input[2]
            twin.input[2] = lowest + HIDDEN
            numbers[lowest] = helper.make_tensor(twin.input[2], types[lowest], [], [-torch.inf])
            nodes.append(twin)
    # A constant that a finite mask still reads is kept in addition to its infinite twin.
    still = {name for node in nodes for name in node.input}
    others = [x for x in proto.graph.initializer if x.name in still or x.name not in numbers]
    for field, values in (("node", nodes), ("initializer", [*others, *numbers.values()])):
        proto.graph.ClearField(field)
        getattr(proto.graph, field).extend(values)
