"""Quantization of operators by type, name or pattern, with a format per operand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chop.ir.graph import MaseGraph
from chop.passes.base import MASE_KEYS, graph_pass
from chop.quantization.operators import quantize_nodes
from chop.quantization.selection import QuantizeConfig
from chop.quantization.summary import clips, warn_about_lost_weights
from chop.quantization.unreached import warn_about_unreached


def quantize_config(settings: Mapping[str, Any]) -> QuantizeConfig:
    """Builds the settings from a flat mapping of `by`, `default` and rules.

    Formats are given as `{"config": {...}}`, "NA" is None, and MASE's other keys are ignored.
    """
    return QuantizeConfig.from_settings(settings, "quantize_transform_pass", MASE_KEYS)


@graph_pass(config=quantize_config, requires=("add_common_metadata_analysis_pass",))
def quantize_transform_pass(mg: MaseGraph, config: QuantizeConfig) -> dict[str, Any]:
    """Replaces each selected operator by a quantized one.

    Parameters, buffers, hooks, device, dtype and `state_dict` keys do not change. A node that is
    already quantized gets the new formats.

    Warns (`UnreachedWarning`) if more than a tenth of the weights that the rules could match are in
    operators without formats, such as recurrent layers. Warns if a format with a fixed step clips
    more than a quarter of a layer's weights.

    Returns:
        quantized: number of nodes.

    Example config::

        {"by": "type", "linear": {"config": {"name": "integer", "data_in_width": 8, ...}},
         "overrides": {"re:.*down_proj": "mxint8"}, "skip": ["lm_head"]}
    """
    chosen = config.select(mg)
    specs = {str(node.target): spec for node, spec in chosen.items()}
    quantize_nodes(mg, chosen)
    warn_about_unreached(mg, config.where, config.may_mean)
    warn_about_lost_weights(mg, specs, clips)
    return {"quantized": sum(not spec.is_float for spec in chosen.values())}
