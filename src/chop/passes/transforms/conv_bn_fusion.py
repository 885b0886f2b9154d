"""Folding of batch norms into the preceding convolutions and linear layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chop.fusion.batch_norm import FracWidth, fold_batch_norms
from chop.ir.graph import MaseGraph
from chop.passes.base import graph_pass


@dataclass(frozen=True)
class FusionConfig:
    """Settings of `conv_bn_fusion_transform_pass`.

    Attributes:
        frac_width: fraction width of quantized integer weights and biases, whose range changes:
            `"keep"`, or a rule of `Integer.frac_width` that derives a new one.
    """

    frac_width: FracWidth = "keep"


@graph_pass(config=FusionConfig)
def conv_bn_fusion_transform_pass(mg: MaseGraph, config: FusionConfig) -> dict[str, Any]:
    """Folds every batch norm that is the only reader of a convolution or linear layer.

    W' = W gamma / sqrt(var + eps) and b' = (b - mean) gamma / sqrt(var + eps) + beta, per output
    channel, with the running statistics, which later training does not update. A layer keeps
    its mask and its formats, and gets the norm's `data_out` format; rounding between the two is
    removed. A bias from the norm has the norm's format. Binary and ternary weights are skipped: a
    factor per channel would change their function.

    Returns:
        fused: paths of the folded norms.
        skipped: reasons by node name of a norm.

    Source: Jacob et al. 2018, arXiv:1712.05877, section 3.2.
    """
    fused, skipped = fold_batch_norms(mg, config.frac_width)
    return {"fused": fused, "skipped": skipped}
