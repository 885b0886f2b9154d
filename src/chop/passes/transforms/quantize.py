"""Quantizes operators: chosen by type, by name or by pattern, each operand in its own format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chop.ir.graph import MaseGraph
from chop.passes.base import MASE_KEYS, graph_pass
from chop.quantization.operators import quantize_nodes
from chop.quantization.selection import QuantizeConfig
from chop.quantization.unreached import warn_about_unreached


def quantize_config(settings: Mapping[str, Any]) -> QuantizeConfig:
    """A flat mapping: beside `by` and `default`, each key is one of `rules`.

    Formats are given as `{"config": {...}}`, "NA" is None, and keys that MASE reads are ignored.
    """
    return QuantizeConfig.from_settings(settings, "quantize_transform_pass", MASE_KEYS)


@graph_pass(config=quantize_config, requires=("add_common_metadata_analysis_pass",))
def quantize_transform_pass(mg: MaseGraph, config: QuantizeConfig) -> dict[str, Any]:
    """Replaces each selected operator by its quantized twin.

    Parameters, buffers, hooks, device and dtype stay; `state_dict` keys too. A node that is
    quantized already takes on the new formats.

    Warns (`UnreachedWarning`) where more than a tenth of the weights that the rules could mean are
    in no operator that has formats, such as recurrent layers.

    Returns:
        quantized: number of nodes.

    Example config::

        {"by": "type", "linear": {"config": {"name": "integer", "data_in_width": 8, ...}},
         "overrides": {"re:.*down_proj": "mxint8"}, "skip": ["lm_head"]}
    """
    chosen = config.select(mg)
    quantize_nodes(mg, chosen)
    warn_about_unreached(mg, config.where, config.may_mean)
    return {"quantized": sum(not spec.is_float for spec in chosen.values())}
