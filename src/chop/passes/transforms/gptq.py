"""Corrects quantized weights so that each layer's output, not each weight, is nearest to float."""

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
        damp_percent: what is added to the diagonal of each Hessian, as a share of its mean, above
            0 to 1.
        block_size: columns after which the changes are applied to all columns that follow; it
            changes the speed, not the result.
        actorder: corrects the columns with the largest inputs first, while the others can still
            make up for them.
        row_weights: what each token (or pixel) counts in a layer's error: `gradient`, its squared
            gradient of the log likelihood, by one backward of the float model, which says what
            it does to the answer, averaged with 1 for all; or `uniform`, all alike. Tokens that
            an `attention_mask` or a `key_padding_mask` hides count nothing.
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
    """Chooses the rounded weights of Linear and Conv2d layers, and of experts, by output errors.

    Layers are corrected in the order in which they run, each on what the layers before it, already
    corrected and quantized, give it. A layer's format stays; a format with shared scales keeps
    the scales of the float weights. What is stored is the weight that rounds to itself. Weights
    that are masked stay as they are, and the others make up for them. A layer that
    would not get better on `batches` gets its nearest weights. Of a layer of experts each expert is
    corrected on the rows that it saw; one that saw fewer rows than it has inputs gets its nearest
    weights.

    Returns:
        layers: by the path of each corrected layer, of an expert with its number, its squared
            output error on `batches` relative to its output, `{"before": float, "after": float}`.
        skipped: reason by the name of each other node or expert.

    Raises:
        ConfigError: a weight format takes scales from the weights that the result would change, or
            a row of a batch brings NaN or infinite values to a layer.

    Source: Frantar et al. 2022, arXiv:2210.17323, section 3.3 and algorithm 1.
    """
    batches = select_inputs(mg, config.batches, "gptq_transform_pass.batches")
    solver = Solver(config.damp_percent, config.block_size, config.actorder)
    walk = Walk(mg, list(batches))
    gptq = Gptq(walk, solver, config.row_weights == "gradient")
    (rounded,) = walk.run(gptq)
    return {"layers": rounded.told, "skipped": gptq.skipped | rounded.left}
