"""Moves the range of inputs into weights before quantizing, without changing the function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from chop.config import Range, check_fields
from chop.ir.batches import Batches, select_inputs
from chop.ir.graph import MaseGraph
from chop.passes.base import graph_pass
from chop.quantization.folding.smoothquant import STRENGTH, smooth
from chop.quantization.walk.walk import Walk


@dataclass(frozen=True)
class SmoothQuantConfig:
    """Settings of `smoothquant_transform_pass`.

    Attributes:
        batches: inputs of the model by name, one mapping per batch; a few hundred training rows.
        migration_strength: from 0, which leaves all of the range in the inputs (and evens out the
            weights), to 1, which moves all of it into the weights.
        rescale_other_readers: where a norm is also read by something else, such as a residual
            sum, multiplies what that reads by s instead of leaving the norm alone.
    """

    batches: Batches
    migration_strength: Annotated[float, Range(0, 1)] = STRENGTH
    rescale_other_readers: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "smoothquant_transform_pass")


@graph_pass(config=SmoothQuantConfig, requires=("add_common_metadata_analysis_pass",))
def smoothquant_transform_pass(mg: MaseGraph, config: SmoothQuantConfig) -> dict[str, Any]:
    """Divides the inputs of Linear layers by s per channel and multiplies their weights by it.

    s_j = max|x_j|^a / max|w_j|^(1-a), a the migration strength, w all layers that read x; a
    channel that is zero on all batches or in all weights has s = 1. The division is folded into
    the norm or Linear before the layers, through ReLU and dropout between them; the float model
    computes what it did: what reads x is run on the batches with each fold and without it, and a
    fold after which it computes something else is undone, with a warning. Tokens that an
    `attention_mask` or torch's `key_padding_mask` hides do not count. Layers with forward hooks or
    a parametrized weight are left alone. It runs before `quantize_transform_pass`; masks stay.

    Returns:
        smoothed: the paths of the readers by the path of their source.
        skipped: reason by the node of each other Linear.

    Raises:
        ConfigError: a row of a batch brings NaN or infinite values to a layer.

    Source: Xiao et al. 2022, arXiv:2211.10438, section 4, eq. 3 and 4; a factor on the residual
    branch: Wei et al. 2022, arXiv:2209.13325, section 4.1.
    """
    batches = select_inputs(mg, config.batches, "smoothquant_transform_pass.batches")
    strength, rescale = config.migration_strength, config.rescale_other_readers
    smoothed, skipped = smooth(Walk(mg, list(batches)), strength, rescale)
    return {"smoothed": smoothed, "skipped": skipped}
