"""Reservoir sampling: a uniform sample of a stream of any length, in bounded memory."""

from __future__ import annotations

import torch
from torch import Tensor


class Reservoir:
    """Reservoir sample: at most `capacity` columns of a stream, each equally likely.

    Every column draws a random key, and the columns with the smallest keys stay, so the sample
    does not depend on the batches. Up to `capacity` columns the sample is complete.

    Args:
        capacity: maximum number of columns.

    Source: bottom-k sampling, Cohen and Kaplan 2007, "Summarizing data using bottom-k sketches".
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.count = 0
        self._generator = torch.Generator().manual_seed(0)
        self._keys = torch.empty(0, dtype=torch.float64)
        self._parts: list[Tensor] = []

    def add(self, columns: Tensor) -> None:
        """Adds columns of shape (..., n). The leading shape is the same in every call."""
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
        self._keys, smallest = self._keys.topk(min(self.capacity, len(self._keys)), largest=False)
        self._parts = [columns[..., smallest.to(columns.device)]]

    @property
    def is_everything(self) -> bool:
        """True as long as no column has been dropped."""
        return self.count <= self.capacity

    def columns(self) -> Tensor | None:
        """Sample of shape (..., at most `capacity`), in no particular order; None if empty."""
        if len(self._keys) > self.capacity:
            self._thin()
        return torch.cat(self._parts, dim=-1) if self._parts else None
