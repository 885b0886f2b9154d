"""SmoothQuant: the range of inputs moves into weights before quantization."""

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
        migration_strength: from 0, which keeps the range in the inputs and evens out the weights,
            to 1, which moves all of it into the weights.
        rescale_other_readers: if a norm has other readers, such as a residual sum, multiplies their
            input by s instead of skipping the norm.
    """

    batches: Batches
    migration_strength: Annotated[float, Range(0, 1)] = STRENGTH
    rescale_other_readers: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "smoothquant_transform_pass")


@graph_pass(config=SmoothQuantConfig, requires=("add_common_metadata_analysis_pass",))
def smoothquant_transform_pass(mg: MaseGraph, config: SmoothQuantConfig) -> dict[str, Any]:
    """Divides the inputs of Linear layers by s per channel and multiplies their weights by s.

    The scale is s_j = max|x_j|^a / max|w_j|^(1-a), with the migration strength a and the weights w
    of all layers that read x. A channel that is zero on all batches or in all weights has s = 1.
    The division is folded into the preceding norm or Linear, through ReLU and dropout, so the float
    model does not change. Each fold is checked by running the readers of x on the batches; a fold
    that changes their results is undone, with a warning. Tokens masked by an `attention_mask` or
    torch's `key_padding_mask` do not count. Layers with forward hooks or a parametrized weight are
    skipped. Run it before `quantize_transform_pass`. Masks stay.

    Returns:
        smoothed: reader paths by source path.
        skipped: reasons by node for other Linear layers.

    Raises:
        ConfigError: if a row of a batch causes NaN or infinite inputs of a layer.

    Source: Xiao et al. 2022, arXiv:2211.10438, section 4, eq. 3 and 4; a factor on the residual
    branch: Wei et al. 2022, arXiv:2209.13325, section 4.1.

    Example config::

        {"batches": batches, "migration_strength": 0.5}
    """
    batches = select_inputs(mg, config.batches, "smoothquant_transform_pass.batches")
    strength, rescale = config.migration_strength, config.rescale_other_readers
    smoothed, skipped = smooth(Walk(mg, list(batches)), strength, rescale)
    return {"smoothed": smoothed, "skipped": skipped}
