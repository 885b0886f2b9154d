"""Average bits per number of a graph."""

from __future__ import annotations

import math
from typing import Any

from torch import fx

from chop.captured.nodes.modes import is_of_training
from chop.ir.annotate import operand_formats
from chop.ir.graph import MaseGraph
from chop.ir.parameters import parameter_bits
from chop.nn.quantized import QuantizedOperator
from chop.passes.base import NoConfig, graph_pass


@graph_pass(config=NoConfig, requires=("add_common_metadata_analysis_pass",))
def calculate_avg_bits_mg_analysis_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Computes the average storage width of parameters and of inputs of quantizable operators.

    Every element counts once, with the width of its format: an 8-bit integer has 8 bits at any
    binary point. Float tensors count with the width of their dtype.

    Returns:
        w_avg_bit: average width of a parameter in bits, a float.
        data_avg_bit: average width of an element of an input in bits, a float.
        weight_bytes: size of all parameters in bytes, a float.
    """
    weight_bits, weight_count = parameter_bits(mg)
    data_bits, data_count = 0.0, 0
    for node in mg.nodes:
        is_quantized = isinstance(mg.get_module(node), QuantizedOperator)
        if is_of_training(node) or not (is_quantized or mg.operator(node).is_quantizable):
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
    """Yields (width, elements) of each floating input of a node."""
    return [
        (bits if fmt.is_identity else fmt.bits(shape), math.prod(shape))
        for name, shape, bits, fmt in operand_formats(mg, node)
        if name.startswith("data_in")
    ]
