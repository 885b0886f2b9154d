"""Fusion passes for attention, RMSNorm, and linear layers with activations."""

from __future__ import annotations

from typing import Any

from chop.fusion.attention_rewriter import fuse_attentions
from chop.fusion.linear_activation import fuse_linear_activations
from chop.fusion.rms_norm import fuse_rms_norms
from chop.ir.graph import MaseGraph
from chop.passes.base import NoConfig, graph_pass


@graph_pass(config=NoConfig, requires=("add_common_metadata_analysis_pass",))
def fuse_attention_transform_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Replaces product, scale, mask, softmax, dropout and product by one fused call.

    softmax(s Q K^T + mask) V becomes `F.scaled_dot_product_attention`, which does not store the
    complete score matrix. Values and gradients are equal up to the order of sums, with two
    exceptions. Dropout draws other numbers. Rows with all keys masked by -inf are NaN before and
    zero after fusion; if masked by finite fills, values are equal, but their queries and keys get
    gradients. A causal mask becomes `is_causal=True`, which skips the hidden half; buffers with
    such a mask are assumed to be constant. Attention weights with other readers, quantized steps,
    softmax over another axis and modules with hooks are not fused. Fuse before quantizing, so that
    the fused call is quantized.

    Returns:
        fused: names of the replaced softmax nodes.
        skipped: reasons by name of a softmax node.

    Source: Dao et al. 2022 (FlashAttention), arXiv:2205.14135, algorithm 1.
    """
    fused, skipped = fuse_attentions(mg)
    return {"fused": fused, "skipped": skipped}


@graph_pass(config=NoConfig, requires=("add_common_metadata_analysis_pass",))
def fuse_rms_norm_transform_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Replaces squares, mean, inverse root and products of an RMSNorm by one `nn.RMSNorm`.

    The pattern is w x / sqrt(mean(x^2) + eps) over the last axis, as in Llama, Mistral and Qwen.
    Values are equal up to the order of sums; paths and `state_dict` keys do not change. A norm that
    computes in another dtype than that of its input, as in bfloat16 models, is not fused. Fuse
    before quantizing: the norm is then quantized as a whole, and has an integer form.

    Returns:
        fused: paths of the new norms.
        skipped: reasons by path of a norm.

    Source: Zhang and Sennrich 2019 (RMSNorm), arXiv:1910.07467, equation 4.
    """
    fused, skipped = fuse_rms_norms(mg)
    return {"fused": fused, "skipped": skipped}


@graph_pass(config=NoConfig, requires=("add_common_metadata_analysis_pass",))
def fuse_linear_activation_transform_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Replaces a linear layer and the activation that is its only reader by one module.

    Without gradients on a CPU, oneDNN applies the activation while the product is in registers.
    Small layers and training run as before. Values are equal up to the order of sums; paths and
    `state_dict` keys do not change. Layers that are quantized, shared or have hooks are not fused.
    Quantize first, because fused layers are not quantized later.

    Returns:
        fused: paths of the fused layers.
        skipped: reasons by path of a layer.
    """
    fused, skipped = fuse_linear_activations(mg)
    return {"fused": fused, "skipped": skipped}
