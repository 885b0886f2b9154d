"""How many bits a number of the model takes on average."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, fx

from chop.formats import NumberFormat, QuantSpec
from chop.ir.graph import MaseGraph, metadata_of
from chop.ir.metadata import TensorInfo
from chop.nn.quantized import QuantizedOperator
from chop.passes.base import NoConfig, graph_pass


@graph_pass(config=NoConfig, requires=("add_common_metadata_analysis_pass",))
def calculate_avg_bits_mg_analysis_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Average storage width of parameters and of the inputs of quantisable operators.

    Every element counts once, with the width of its format: an 8-bit integer is 8 bits wherever
    its binary point is. What is not quantised counts with the width of its dtype.

    Returns: `{"w_avg_bit": float, "data_avg_bit": float, "weight_bytes": float}`.
    """
    weight_bits, weight_count = parameter_bits(mg)
    data_bits, data_count = 0.0, 0
    for node in mg.nodes:
        if not mg.operator(node).is_quantizable:
            continue
        for bits, numel in _data_in(mg, node):
            data_bits += bits * numel
            data_count += numel
    return {
        "w_avg_bit": weight_bits / max(weight_count, 1),
        "data_avg_bit": data_bits / max(data_count, 1),
        "weight_bytes": weight_bits / 8,
    }


def parameter_bits(mg: MaseGraph) -> tuple[float, int]:
    """(total bits, number of elements) of the model's parameters; a shared one counts once."""
    formats: dict[int, NumberFormat] = {}
    for module in mg.model.modules():
        if isinstance(module, QuantizedOperator):
            for operand in ("weight", "bias"):
                parameter = getattr(module, operand, None)
                if isinstance(parameter, Tensor):
                    formats[id(parameter)] = getattr(module.spec, operand)
    total, count = 0.0, 0
    for parameter in mg.model.parameters():
        total += parameter.numel() * _width(formats.get(id(parameter)), parameter)
        count += parameter.numel()
    return total, count


def _width(number_format: NumberFormat | None, x: Tensor) -> float:
    if number_format is None or number_format.is_identity:
        return x.dtype.itemsize * 8
    return number_format.bits(x.shape)


def _data_in(mg: MaseGraph, node: fx.Node) -> list[tuple[float, int]]:
    """(width, elements) of each floating input of a node."""
    module = mg.module_of(node)
    spec = module.spec if isinstance(module, QuantizedOperator) else QuantSpec()
    found = []
    for name, info in metadata_of(node).common.args.items():
        if name.startswith("data_in") and isinstance(info, TensorInfo) and info.is_floating:
            exact = info.torch_dtype.itemsize * 8  # type: ignore[union-attr]
            width = exact if spec.data_in.is_identity else spec.data_in.bits(info.shape)
            found.append((width, math.prod(info.shape)))
    return found
