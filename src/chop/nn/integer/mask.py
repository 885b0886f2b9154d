"""Attention masks: which keys each query attends to."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class KeptKeys(nn.Module):
    """Boolean mask: True where `attention_mask[b, k]` is not 0 and, if causal, k <= q.

    Args:
        queries: how many there are.
        keys: how many.
        is_causal: hides the keys after each query.
    """

    def __init__(self, queries: int, keys: int, is_causal: bool) -> None:
        super().__init__()
        self.queries, self.keys, self.is_causal = queries, keys, is_causal

    def forward(self, attention_mask: Tensor | None = None) -> Tensor:
        """(batch, 1, queries or 1, keys), of a mask (batch, keys); (queries, keys) without one."""
        kept = torch.ones(self.queries, self.keys, dtype=torch.bool)
        kept = kept.tril() if self.is_causal else kept[:1]
        return kept if attention_mask is None else kept & attention_mask.bool()[:, None, None, :]
