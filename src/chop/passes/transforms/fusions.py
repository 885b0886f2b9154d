"""Fusions of attention, RMSNorm, and linear layers with activations."""

from __future__ import annotations

from typing import Any

from chop.fusion.attention_rewriter import fuse_attentions
from chop.fusion.linear_activation import fuse_linear_activations
from chop.fusion.rms_norm import fuse_rms_norms
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


@graph_pass(config=NoConfig, requires=("add_common_metadata_analysis_pass",))
def fuse_linear_activation_transform_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Replaces a linear layer and the activation that alone reads it by one module.

    Where no gradients are asked for, on a CPU, the activation is applied before the product leaves
    the registers, by oneDNN; small layers and training compute what they did. Values differ by the
    order of sums. Paths and `state_dict` keys stay. Layers that are quantized, shared or have hooks
    are left as they are. Quantize first: a fused layer is not quantized any more.

    Returns:
        fused: list of the paths of the layers that were fused.
        skipped: reason by the path of a layer.
    """
    fused, skipped = fuse_linear_activations(mg)
    return {"fused": fused, "skipped": skipped}
