"""Attention masks: the keys that each query attends to."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class KeptKeys(nn.Module):
    """Boolean mask: True where `attention_mask[b, k]` is not 0 and, if causal, k <= q.

    Args:
        queries: number of queries.
        keys: number of keys.
        is_causal: hides the keys after each query.
    """

    def __init__(self, queries: int, keys: int, is_causal: bool) -> None:
        super().__init__()
        self.queries, self.keys, self.is_causal = queries, keys, is_causal

    def forward(self, attention_mask: Tensor | None = None) -> Tensor:
        """Maps a mask (batch, keys) to (batch, 1, queries or 1, keys), None to (queries, keys)."""
        visible = torch.ones(self.queries, self.keys, dtype=torch.bool)
        visible = visible.tril() if self.is_causal else visible[:1]
        return (
            visible if attention_mask is None else visible & attention_mask.bool()[:, None, None, :]
        )
