"""Average bits per parameter of a plain model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from torch import nn

from chop.captured.module import CapturedModule
from chop.captured.wrappers import check_is_module
from chop.config import parse
from chop.ir.graph import MaseGraph
from chop.ir.parameters import (
    count_stored_parameters,
    stored_parameters,
    total_bits,
)
from chop.passes.base import NoConfig
from chop.passes.module.base import documented

M = TypeVar("M", bound=nn.Module)
NAME = "calculate_avg_bits_module_analysis_pass"


@documented(NoConfig)
def calculate_avg_bits_module_analysis_pass(
    module: M, pass_args: Mapping[str, Any] | None = None
) -> tuple[M, dict[str, Any]]:
    """Computes the average storage width of parameters; shared ones count once.

    Counts like `calculate_avg_bits_mg_analysis_pass`, but without inputs, whose widths are unknown
    without a graph.

    Args:
        module: any module, quantized or not; for a graph, `mg.model`.
        pass_args: there are no settings.
    Returns:
        w_avg_bit: average width of a parameter in bits, a float.
        weight_bytes: size of all parameters in bytes, a float.

    Raises:
        ConfigError: if `module` is not a module, or a setting is given.
    """
    check_is_module(module, NAME)
    parse(NoConfig, pass_args, NAME)
    if isinstance(module, CapturedModule):
        # Quantized calls of functions take parameters too; only the graph knows which.
        stored = stored_parameters(MaseGraph(module))
    else:
        stored = count_stored_parameters(module)
    bits, count = total_bits(stored)
    return module, {"w_avg_bit": bits / max(count, 1), "weight_bytes": bits / 8}
