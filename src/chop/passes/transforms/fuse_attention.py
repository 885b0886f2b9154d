"""Makes attention that is written out one call of the fused kernel."""

from __future__ import annotations

from typing import Any

from chop.fusion.attention_rewriter import fuse_attentions
from chop.ir.graph import MaseGraph
from chop.passes.base import NoConfig, graph_pass


@graph_pass(config=NoConfig, requires=("add_common_metadata_analysis_pass",))
def fuse_attention_transform_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Replaces product, scale, mask, softmax, dropout and product by one call.

    softmax(s Q K^T + mask) V becomes `F.scaled_dot_product_attention`, which never stores the
    scores of all queries and keys. Values and gradients stay, up to the order of sums; two things
    differ: dropout draws other numbers, and rows that hide every key. In these -inf gives
    NaN written out and zeros fused; finite fills give the same values, but fused their queries and
    keys have gradients too. A mask that hides what lies above the diagonal becomes
    `is_causal=True`, which does not compute the hidden half; buffers that hold such a triangle are
    taken for constants. Attention weights that something else reads, quantized steps, softmax over
    another axis and modules with hooks are left as they are. Fuse before quantizing: the call is
    then quantized like any other.

    Returns:
        fused: list of the names of the softmax nodes that were replaced.
        skipped: reason by the name of a softmax node.

    Source: Dao et al. 2022 (FlashAttention), arXiv:2205.14135, algorithm 1.
    """
    fused, skipped = fuse_attentions(mg)
    return {"fused": fused, "skipped": skipped}
