"""GPTQ: correction of quantized weights that minimizes each layer's output error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from chop.config import Range, check_fields
from chop.ir.batches import Batches, select_inputs
from chop.ir.graph import MaseGraph
from chop.passes.base import graph_pass
from chop.quantization.rounding.columns import Solver
from chop.quantization.rounding.gptq import Gptq
from chop.quantization.walk.walk import Walk


@dataclass(frozen=True)
class GptqConfig:
    """Settings of `gptq_transform_pass`.

    Attributes:
        batches: inputs of the model by name, one mapping per batch; a few hundred training rows.
        damp_percent: damping added to the diagonal of each Hessian, as a share of its mean, above 0
            to 1.
        block_size: number of columns after which changes are applied to all later columns; affects
            only the speed.
        actorder: corrects columns with the largest inputs first, while later columns can still
            compensate.
        row_weights: weight of each token (or pixel) in a layer's error: `gradient`, its squared
            gradient of the log likelihood from one backward of the float model, averaged with 1; or
            `uniform`. Tokens masked by an `attention_mask` or a `key_padding_mask` do not count.
    """

    batches: Batches
    damp_percent: Annotated[float, Range(most=1, above=0)] = 0.01
    block_size: Annotated[int, Range(1)] = 128
    actorder: bool = True
    row_weights: Literal["gradient", "uniform"] = "gradient"

    def __post_init__(self) -> None:
        check_fields(self, "gptq_transform_pass")


@graph_pass(config=GptqConfig, requires=("quantize_transform_pass",))
def gptq_transform_pass(mg: MaseGraph, config: GptqConfig) -> dict[str, Any]:
    """Chooses rounded weights of Linear, Conv2d and expert layers that minimize output errors.

    Layers are corrected in execution order, each on the results of the corrected and quantized
    layers before it. Formats do not change; shared scales stay those of the float weights. The
    stored weight rounds to itself. Masked weights stay masked, and other weights compensate. If a
    layer would not improve on `batches`, its weights are rounded to nearest. Experts are corrected
    on the rows routed to them; with fewer rows than inputs, an expert's weights are rounded to
    nearest.

    Returns:
        layers: relative squared output error on `batches` by layer path, for experts with their
            number, `{"before": float, "after": float}`.
        skipped: reasons by name for other nodes and experts.

    Raises:
        ConfigError: if the corrected weights would change the scales of their format, or a row of a
            batch causes NaN or infinite inputs of a layer.

    Source: Frantar et al. 2022, arXiv:2210.17323, section 3.3 and algorithm 1.

    Example config::

        {"batches": batches, "damp_percent": 0.01, "actorder": True}
    """
    batches = select_inputs(mg, config.batches, "gptq_transform_pass.batches")
    solver = Solver(config.damp_percent, config.block_size, config.actorder)
    walk = Walk(mg, list(batches))
    gptq = Gptq(walk, solver, config.row_weights == "gradient")
    (rounded,) = walk.run(gptq)
    return {"layers": rounded.report, "skipped": gptq.skipped | rounded.skipped}
