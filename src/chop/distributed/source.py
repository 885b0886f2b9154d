"""Tensor sources: files with the parameters of a sharded model."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class TensorSource(Protocol):
    """Reads parts of the tensors of a model on the meta device."""

    def read(self, name: str, slices: tuple[slice, ...]) -> Tensor:
        """Reads a part of a tensor into new, contiguous memory."""
