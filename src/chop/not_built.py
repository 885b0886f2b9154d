"""Names of MASE whose parts are missing: each can be imported, and says so when it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from chop.errors import NotBuiltError

HARDWARE = (
    "no Verilog is emitted yet; quantize_transform_pass to integer formats gives the bits that a "
    "circuit would have, and mg.export writes them down."
)
DISTRIBUTED = (
    "no model is sharded over devices yet; mg.model is an ordinary module that "
    "torch.distributed.tensor.parallel.parallelize_module takes."
)
NOT_BUILT: dict[str, str] = {
    "autosharding_analysis_pass": DISTRIBUTED,
    "resharding_transform_pass": DISTRIBUTED,
    "AutoPipelineForDistributedInference": DISTRIBUTED,
    "emit_verilog_top_transform_pass": HARDWARE,
    "emit_internal_rtl_transform_pass": HARDWARE,
    "emit_bram_transform_pass": HARDWARE,
    "emit_cocotb_transform_pass": HARDWARE,
    "simulate": HARDWARE,
}
"""What is missing, and what to use meanwhile."""


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name not in NOT_BUILT:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotBuiltError(f"{name}: {NOT_BUILT[name]}")

    refuse.__name__ = name
    return refuse
