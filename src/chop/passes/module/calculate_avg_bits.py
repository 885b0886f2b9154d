"""Average bits per parameter of a model that is not a graph."""

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
    """Average storage width of the parameters; a shared one counts once.

    Counted as in `calculate_avg_bits_mg_analysis_pass`. The widths of inputs are not known
    without a graph.

    Args:
        module: any module, quantized or not; of a graph, `mg.model`.
        pass_args: nothing can be set.
    Returns:
        w_avg_bit: average width of a parameter in bits, a float.
        weight_bytes: size of all parameters in bytes, a float.

    Raises:
        ConfigError: `module` is no module, or a setting is given.
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
