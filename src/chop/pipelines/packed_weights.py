"""Packed weights: the passes that store the weights of all operators in one format.

Their inputs may be rounded, too: to 8 bits, as many engines multiply.
"""

from __future__ import annotations

from chop.errors import ConfigError
from chop.formats import NumberFormat
from chop.formats.recipe import Recipe
from chop.ir.graph import MaseGraph
from chop.nn.quantized import QuantizedOperator
from chop.passes import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    pack_transform_pass,
    quantize_transform_pass,
)
from chop.private.modules import own_parameters


def pack_weights(
    mg: MaseGraph,
    number_format: NumberFormat,
    inputs: NumberFormat | None = None,
    recipe: Recipe | None = None,
) -> MaseGraph:
    """A graph with the weights of all operators that have one packed; the rest stays float.

    Args:
        mg: float; it stays as it is.
        number_format: of the weights.
        inputs: what these operators round their inputs to; indices stay. None: nothing.
        recipe: other formats of some weights, and what stays float. None: there are none.

    Raises:
        ConfigError: no operator has a weight, or a pattern of the recipe matches nothing.
    """
    mg, _ = init_metadata_analysis_pass(mg)
    mg, _ = add_common_metadata_analysis_pass(mg)
    formats = {"weight": number_format} | ({} if inputs is None else {"data_in": inputs})
    rule = {"config": formats}
    used = map(mg.operator, mg.nodes)
    weighted = {row.name for row in used if row.weight and row.quantized}
    rules = {**dict.fromkeys(weighted, rule), **(recipe or Recipe()).plain()}
    mg, _ = quantize_transform_pass(mg, {"by": "type", **rules})
    mg, _ = pack_transform_pass(mg, {"silent": True})
    if recipe is not None and recipe.plain():
        _check_ties(mg)
    return mg


def _check_ties(mg: MaseGraph) -> None:
    """Raises ConfigError for weights that have a format, and are those of float layers, too."""
    floats = {
        id(x)
        for module in mg.model.modules()
        if not isinstance(module, QuantizedOperator)
        for x in own_parameters(module).values()
    }
    tied = [
        path
        for path, module in mg.model.named_modules()
        if isinstance(module, QuantizedOperator)
        and id(own_parameters(module).get("weight", 0)) in floats
    ]
    if tied:
        raise ConfigError(
            f"skip: '{tied[0]}' has its weight with modules that stay float; expected it in skip, "
            "too, or neither."
        )
