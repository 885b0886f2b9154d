"""Packed weights: passes that store the weights of all operators in one format.

Inputs can be rounded as well, for instance to 8 bits, as many inference engines do.
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
    share_scales_transform_pass,
)
from chop.private.modules import own_parameters


def pack_weights(
    mg: MaseGraph,
    number_format: NumberFormat,
    inputs: NumberFormat | None = None,
    recipe: Recipe | None = None,
) -> MaseGraph:
    """Returns a graph with all operator weights packed; other parameters stay float.

    Weights that engines join share a scale of the tensor, see `share_scales_transform_pass`.

    Args:
        mg: float graph; it is not changed.
        number_format: format of the weights.
        inputs: format of the inputs of these operators, except indices; None leaves them float.
        recipe: per-layer formats and layers to skip, or None.

    Raises:
        ConfigError: if no operator has a weight, or a pattern of the recipe matches nothing.
    """
    mg, _ = init_metadata_analysis_pass(mg)
    mg, _ = add_common_metadata_analysis_pass(mg)
    formats = {"weight": number_format} | ({} if inputs is None else {"data_in": inputs})
    rule = {"config": formats}
    used = map(mg.operator, mg.nodes)
    weighted = {row.name for row in used if row.weight and row.quantized}
    rules = {**dict.fromkeys(weighted, rule), **(recipe or Recipe()).plain()}
    mg, _ = quantize_transform_pass(mg, {"by": "type", **rules})
    mg, _ = share_scales_transform_pass(mg, inplace=True)
    mg, _ = pack_transform_pass(mg, {"silent": True})
    if recipe is not None and recipe.plain():
        _check_ties(mg)
    return mg


def _check_ties(mg: MaseGraph) -> None:
    """Raises ConfigError for quantized weights that are shared with float layers."""
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
            f"skip: '{tied[0]}' shares its weight with modules that stay float; skip all of them "
            "or none."
        )
