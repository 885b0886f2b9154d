"""Makes RMSNorms that are written out one module each."""

from __future__ import annotations

from typing import Any

from chop.fusion.rms_norm import fuse_rms_norms
from chop.ir.graph import MaseGraph
from chop.passes.base import NoConfig, graph_pass


@graph_pass(config=NoConfig, requires=("add_common_metadata_analysis_pass",))
def fuse_rms_norm_transform_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Replaces squares, mean, inverse root and products of an RMSNorm by one `nn.RMSNorm`.

    w x / sqrt(mean(x^2) + eps) over the last axis, as the norms of Llama, Mistral and Qwen compute
    it. Values stay up to the order of sums; paths and `state_dict` keys stay. A norm that computes
    in another dtype than it reads, as in models in bfloat16, is left as it is. Fuse before
    quantizing: the norm is then quantized as a whole, and has an integer form.

    Returns:
        fused: list of the paths of the norms that were made.
        skipped: reason by the path of a norm.

    Source: Zhang and Sennrich 2019 (RMSNorm), arXiv:1910.07467, equation 4.
    """
    fused, skipped = fuse_rms_norms(mg)
    return {"fused": fused, "skipped": skipped}
