"""Scaled dot-product attention whose products and softmax are quantised too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.formats import QuantSpec
from chop.nn.quantized.base import QuantizedOperator
from chop.nn.quantized.call import QuantCall


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the last axis of `scores + mask`; a row that is masked altogether is zero."""
    masked = scores if mask is None else scores + mask
    return torch.softmax(masked, -1).masked_fill((masked == -math.inf).all(-1, keepdim=True), 0)


class QuantScaledDotProductAttention(QuantizedOperator):
    """`F.scaled_dot_product_attention` in three quantised steps.

    Each step has formats of its own, so that derived fractions suit its own range. `data_in` holds
    for queries, keys, values and scores; `weight` for the attention weights; the mask is exact.
    B batch, H heads, Q queries, K keys, D head size.

    Source: Vaswani et al. 2017, arXiv:1706.03762, equation 1.
    """

    operands = ("data_in", "weight")
    fallback = {"weight": "data_in"}  # noqa: RUF012

    def __init__(self, config: QuantSpec | Mapping[str, Any] | None = None) -> None:
        super().__init__(config=config)
        inner = QuantSpec(data_in=self.spec.data_in, gradient=self.spec.gradient)
        self.product = QuantCall(torch.matmul, ("data_in", "data_in"), inner)
        self.softmax = QuantCall(masked_softmax, ("data_in", None), inner)
        self.context = QuantCall(torch.matmul, ("weight", "data_in"), self.spec)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Same arguments and result as `torch.nn.functional.scaled_dot_product_attention`.

        Args:
            query: (B, H, Q, D).
            key: (B, H, K, D); fewer heads with `enable_gqa`.
            value: (B, H, K, D).
            attn_mask: broadcast to (B, H, Q, K): added, or, if boolean, False hides.
        Returns: (B, H, Q, D).
        """
        if enable_gqa:
            groups = query.size(-3) // key.size(-3)
            key = key.repeat_interleave(groups, -3)
            value = value.repeat_interleave(groups, -3)
        if is_causal:
            attn_mask = query.new_ones(query.size(-2), key.size(-2), dtype=torch.bool).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = query.new_zeros(()).masked_fill(~attn_mask, -math.inf)
        scale = 1 / math.sqrt(query.size(-1)) if scale is None else scale
        scores_BHQK = self.product(query, key.transpose(-2, -1)) * scale
        weights_BHQK = self.softmax(scores_BHQK, attn_mask)
        if dropout_p > 0:
            weights_BHQK = F.dropout(weights_BHQK, dropout_p)
        return self.context(weights_BHQK, value)
