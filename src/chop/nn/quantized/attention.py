"""Scaled dot-product attention with quantized products and softmax."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.formats import QuantSpec
from chop.nn.quantized.base import QuantizedOperator
from chop.nn.quantized.call import QuantCall
from chop.nn.quantized.scores import masked_scores
from chop.private.modules import set_members


class KeyCall(QuantCall):
    """Product of queries and keys; blocks of keys run along D, so that no block spans two keys."""

    def forward(self, query: Tensor, key: Tensor) -> Any:
        """Maps (B, H, Q, D) and (B, H, K, D) to (B, H, Q, K)."""
        Q = self.quantize
        query, key = Q("data_in", query), Q("data_in", key).transpose(-2, -1)
        return Q("data_out", self.function(query, key))


class ScoreCall(QuantCall):
    """Step of attention whose first argument is scores or weights of keys."""

    def forward(self, scores: Tensor, other: Tensor | None, hidden: Tensor | None = None) -> Any:
        """Calls the function.

        Args:
            scores: (B, H, Q, K).
            other: its second argument.
            hidden: boolean, broadcasts to `scores`: True for keys hidden from a query.
        """
        (first, second), Q = self.arguments.values(), self.quantize
        if first == "weight" and self.operand_format("weight").ignores_zeros:
            hidden = None  # hidden keys have weights of zero
        return Q("data_out", self.function(Q(first, scores, hidden), Q(second, other)))


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Computes the softmax over the last axis of `scores + mask`; entirely masked rows are zero."""
    if mask is None:
        return torch.softmax(scores, -1)
    masked = scores + mask
    hidden = (masked == -math.inf).all(-1, keepdim=True)
    # Softmax of a row of -inf has a NaN gradient, even where it is filled in afterwards.
    return torch.softmax(masked.masked_fill(hidden, 0), -1).masked_fill(hidden, 0)


class QuantScaledDotProductAttention(QuantizedOperator):
    """`F.scaled_dot_product_attention` in three quantized steps.

    Each step has its own formats, so that derived fractions suit its range. `data_in` applies to
    queries, keys, values and scores, and `weight` to the attention weights. The mask is exact:
    hidden scores are never rounded and do not affect scales.
    B batch, H heads, Q queries, K keys, D head size.

    Source: Vaswani et al. 2017, arXiv:1706.03762, equation 1.
    """

    function = staticmethod(F.scaled_dot_product_attention)
    operands = ("data_in", "weight")
    fallback = {"weight": "data_in"}  # noqa: RUF012

    def __init__(self, config: QuantSpec | Mapping[str, Any] | None = None) -> None:
        nn.Module.__init__(self)
        spec = QuantSpec.parse(
            {} if config is None else config, self.operands, self.fallback, type(self).__name__
        )
        inner = spec.keeping("data_in")
        self.product = KeyCall(torch.matmul, {"input": "data_in", "other": "data_in"}, inner)
        self.softmax = ScoreCall(masked_softmax, {"scores": "data_in", "mask": None}, inner)
        self.context = ScoreCall(torch.matmul, {"input": "weight", "other": "data_in"}, spec)

    @property
    def _steps(self) -> tuple[QuantCall, QuantCall, QuantCall]:
        return self.product, self.softmax, self.context

    def _with_steps(self, *steps: QuantizedOperator) -> QuantScaledDotProductAttention:
        twin = copy.copy(self)
        names = ("product", "softmax", "context")
        set_members(twin, children=dict(zip(names, steps, strict=True)))
        return twin

    @property
    def spec(self) -> QuantSpec:  # type: ignore[override]
        """The formats of the steps: `data_in` is that of queries and keys."""
        return self.context.spec.with_quantizers(data_in=self.product.spec.data_in)

    def with_spec(self, spec: QuantSpec) -> QuantScaledDotProductAttention:
        """Returns the attention in other formats."""
        new = QuantScaledDotProductAttention(spec)._steps
        pairs = zip(self._steps, new, strict=True)
        return self._with_steps(*(old.with_spec(step.spec) for old, step in pairs))

    def freeze_scales(self) -> QuantScaledDotProductAttention:
        """Returns the attention with frozen scales in all steps."""
        return self._with_steps(*(step.freeze_scales() for step in self._steps))

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
        """Has the arguments and the result of `torch.nn.functional.scaled_dot_product_attention`.

        Args:
            query: (B, H, Q, D).
            key: (B, H, K, D); fewer heads with `enable_gqa`.
            value: (B, H, K, D).
            attn_mask: broadcast to (B, H, Q, K): added, or, if boolean, False hides. Default:
                    none.
            dropout_p: probability, 0 to 1, that a weight is dropped.
            is_causal: hides the keys after each query; not together with `attn_mask`.
            scale: scale of `query @ key.T`. Default: 1 / sqrt(D).
            enable_gqa: grouped queries: each head of `key` and `value` serves H / heads queries.
        Returns: (B, H, Q, D).
        """
        if enable_gqa:
            groups = query.size(-3) // key.size(-3)
            key = key.repeat_interleave(groups, -3)
            value = value.repeat_interleave(groups, -3)
        if is_causal and attn_mask is not None:
            raise ValueError("expected either attn_mask or is_causal=True, got both.")
        if is_causal:
            attn_mask = query.new_ones(query.size(-2), key.size(-2), dtype=torch.bool).tril()
        hidden = None
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            hidden = ~attn_mask
            attn_mask = query.new_zeros(()).masked_fill(hidden, -math.inf)
        elif attn_mask is not None:
            hidden = masked_scores(attn_mask)
        scale = 1 / math.sqrt(query.size(-1)) if scale is None else scale
        scores_BHQK = self.product(query, key) * scale
        weights_BHQK = self.softmax(scores_BHQK, attn_mask, hidden)
        if dropout_p > 0:
            weights_BHQK = F.dropout(weights_BHQK, dropout_p)
        context: Tensor = self.context(weights_BHQK, value, hidden)
        return context
