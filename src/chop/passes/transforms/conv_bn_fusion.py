"""Folds batch norms into the convolutions before them: one operator less, the same function."""

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
        frac_width: what becomes of the fraction of quantized integer weights and biases, whose
            range changes: `"keep"`, or a rule of `Integer.frac_width` to derive it anew.
    """

    frac_width: FracWidth = "keep"


@graph_pass(config=FusionConfig)
def conv_bn_fusion_transform_pass(mg: MaseGraph, config: FusionConfig) -> dict[str, Any]:
    """Folds every batch norm that alone reads a convolution into it, and removes the norm.

    W' = W gamma / sqrt(var + eps) and b' = (b - mean) gamma / sqrt(var + eps) + beta, per output
    channel, with the running statistics; training afterwards does not update these any more.
    A convolution keeps its mask and its formats and takes over the norm's `data_out` format; what
    was rounded between the two no longer is. A bias that the norm brings has the norm's format.

    Returns:
        fused: list of the paths of the norms that were folded.
        skipped: reason by the name of a norm's node.

    Source: Jacob et al. 2018, arXiv:1712.05877, section 3.2.
    """
    fused, skipped = fold_batch_norms(mg, config.frac_width)
    return {"fused": fused, "skipped": skipped}
