"""Reservoir sampling: a uniform sample of a stream of any length, in bounded memory."""

from __future__ import annotations

import torch
from torch import Tensor


class Reservoir:
    """Reservoir sample: at most `capacity` columns of all that were added, each equally likely.

    Every column draws a random key and those with the smallest keys stay, so that the sample does
    not depend on how the stream is cut into batches. Until `capacity` is reached it is everything.

    Args:
        capacity: the most columns to keep.

    Source: bottom-k sampling, Cohen and Kaplan 2007, "Summarizing data using bottom-k sketches".
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.count = 0
        self._generator = torch.Generator().manual_seed(0)
        self._keys = torch.empty(0, dtype=torch.float64)
        self._parts: list[Tensor] = []

    def add(self, columns: Tensor) -> None:
        """Adds columns, shape (..., n); the leading shape is always the same."""
        n = columns.shape[-1]
        self.count += n
        keys = torch.rand(n, generator=self._generator, dtype=torch.float64)
        if len(self._keys) >= self.capacity:
            chosen = keys < self._keys.max()
            keys, columns = keys[chosen], columns[..., chosen.to(columns.device)]
        self._keys = torch.cat([self._keys, keys])
        self._parts.append(columns.clone())
        if len(self._keys) > 2 * self.capacity:
            self._thin()

    def _thin(self) -> None:
        columns = torch.cat(self._parts, dim=-1)
        self._keys, kept = self._keys.topk(min(self.capacity, len(self._keys)), largest=False)
        self._parts = [columns[..., kept.to(columns.device)]]

    @property
    def is_everything(self) -> bool:
        """True while nothing has been left out."""
        return self.count <= self.capacity

    def columns(self) -> Tensor | None:
        """The sample, shape (..., at most `capacity`), in no particular order; None if empty."""
        if len(self._keys) > self.capacity:
            self._thin()
        return torch.cat(self._parts, dim=-1) if self._parts else None
