"""Quantization of the modules of a plain model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from chop.captured.followed_calls import follow_calls
from chop.captured.wrappers import check_is_module
from chop.errors import ConfigError, describe
from chop.ir.unreached import list_unreached_matrices, unreached_sentence, warn_about_share
from chop.nn.quantized import QuantizedOperator
from chop.nn.quantized.replicas import keep_ranges_local
from chop.passes.base import MASE_KEYS
from chop.passes.module.base import documented
from chop.private.modules import own_parameters
from chop.quantization.modules import quantize_modules
from chop.quantization.selection import QuantizeConfig

NAME = "quantize_module_transform_pass"


@documented(QuantizeConfig.from_settings, "the copy")
def quantize_module_transform_pass(
    network: nn.Module, pass_args: Mapping[str, Any]
) -> tuple[nn.Module, dict[str, Any]]:
    """Returns a copy of `network` with the selected modules quantized.

    Names are dotted paths of modules. Functions called in `forward` stay float; quantizing them
    needs a graph. The inside of `nn.MultiheadAttention` also stays float, because it reads the
    weights of its modules without calling them; in a graph it is quantized. Warns
    (`UnreachedWarning`) if more than a tenth of the weights are not in quantizable modules.

    Args:
        network: any module; for a graph, `mg.model`.
        pass_args: see `QuantizeConfig`.
    Returns:
        quantized: number of modules.

    Raises:
        ConfigError: if a key matches no module, or its config does not fit the operator.

    Example config::

        {"by": "type", "linear": {"config": {"name": "integer", "data_in_width": 8, ...}},
         "overrides": {"re:.*down_proj": "mxint8"}, "skip": ["lm_head"]}
    """
    check_is_module(network, NAME)
    if not isinstance(pass_args, Mapping):
        raise ConfigError(f"{NAME}: expected a mapping, got {describe(pass_args)}.")
    config = QuantizeConfig.from_settings(pass_args, NAME, MASE_KEYS)
    result, count = quantize_modules(network, config)
    keep_ranges_local(result)
    follow_calls(result)
    weights = [
        weight.numel()
        for module in result.modules()
        if isinstance(module, QuantizedOperator) and not module.spec.weight.is_identity
        if (weight := own_parameters(module).get("weight")) is not None
    ]
    unreached = list_unreached_matrices(result, lambda path: not config.may_mean(path))
    text = unreached_sentence(unreached, sum(weights), NAME)
    if text is not None:
        warn_about_share(network, text, NAME)
    return result, {"quantized": count}
