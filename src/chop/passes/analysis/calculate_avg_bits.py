"""How many bits a number of the model takes on average."""

from __future__ import annotations

import math
from typing import Any

from torch import fx

from chop.ir.graph import MaseGraph, metadata_of
from chop.ir.metadata import TensorInfo, operand_of
from chop.ir.parameters import parameter_bits
from chop.nn.quantized import QuantizedOperator
from chop.passes.base import NoConfig, graph_pass


@graph_pass(config=NoConfig, requires=("add_common_metadata_analysis_pass",))
def calculate_avg_bits_mg_analysis_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Average storage width of parameters and of the inputs of quantisable operators.

    Every element counts once, with the width of its format: an 8-bit integer is 8 bits wherever
    its binary point is. What is not quantised counts with the width of its dtype.

    Returns:
        w_avg_bit: average width of a parameter in bits, a float.
        data_avg_bit: average width of an element of an input in bits, a float.
        weight_bytes: size of all parameters in bytes, a float.
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


def _data_in(mg: MaseGraph, node: fx.Node) -> list[tuple[float, int]]:
    """(width, elements) of each floating input of a node."""
    module = mg.module_of(node)
    found = []
    for name, info in metadata_of(node).common.args.items():
        if not (name.startswith("data_in") and isinstance(info, TensorInfo) and info.is_floating):
            continue
        width = float(info.torch_dtype.itemsize * 8)  # type: ignore[union-attr]
        if isinstance(module, QuantizedOperator):
            number_format = module.spec.number_format(operand_of(name, module))
            width = width if number_format.is_identity else number_format.bits(info.shape)
        found.append((width, math.prod(info.shape)))
    return found
