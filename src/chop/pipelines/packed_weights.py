"""Packed weights: the passes that store the weights of all operators in one format.

Their inputs may be rounded, too: to 8 bits, as many engines multiply.
"""

from __future__ import annotations

from chop.formats import NumberFormat
from chop.ir.graph import MaseGraph
from chop.passes import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    pack_transform_pass,
    quantize_transform_pass,
)


def pack_weights(
    mg: MaseGraph, number_format: NumberFormat, inputs: NumberFormat | None = None
) -> MaseGraph:
    """A graph with the weights of all operators that have one packed; the rest stays float.

    Args:
        mg: float; it stays as it is.
        number_format: of the weights.
        inputs: what these operators round their inputs to; indices stay. None: nothing.

    Raises:
        ConfigError: no operator has a weight.
    """
    mg, _ = init_metadata_analysis_pass(mg)
    mg, _ = add_common_metadata_analysis_pass(mg)
    formats = {"weight": number_format} | ({} if inputs is None else {"data_in": inputs})
    rule = {"config": formats}
    used = map(mg.operator, mg.nodes)
    weighted = {row.name for row in used if row.weight and row.quantized}
    mg, _ = quantize_transform_pass(mg, {"by": "type", **dict.fromkeys(weighted, rule)})
    return pack_transform_pass(mg, {"silent": True})[0]
