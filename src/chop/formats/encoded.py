"""Encoded tensor: the codes and scales that a format stores."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Tensor encoded by a number format. It has no gradient.

    Attributes:
        codes: uint8, one-dimensional: bit-packed codes of the elements in row-major order.
        shape: shape of the decoded tensor.
        dtype: dtype of the decoded tensor.
        scales: shared scales in row-major order of their groups, or None: float32 numbers, or
            uint8 bytes of bit-packed codes.
        tensor_scale: float32 scalar that multiplies all scales, or None.
    """

    codes: Tensor
    shape: torch.Size
    dtype: torch.dtype
    scales: Tensor | None = None
    tensor_scale: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("scales", "tensor_scale"):
            x = getattr(self, name)
            if x is not None and x.requires_grad:
                object.__setattr__(self, name, x.detach())

    @property
    def size_bytes(self) -> int:
        """Size of codes and scales in bytes."""
        stored = (self.codes, self.scales, self.tensor_scale)
        return sum(tensor.nbytes for tensor in stored if tensor is not None)

    def take_rows(self, index: Tensor) -> Encoded:
        """Returns selected rows. The format must be row-separable.

        Args:
            index: one-dimensional integers: positions along the first axis.
        Returns: encoded tensor of the shape (index size, *shape[1:]).
        """
        count = self.shape[0]
        codes = self.codes.view(count, -1).index_select(0, index).view(-1)
        scales = self.scales
        if scales is not None and scales.numel():
            scales = scales.view(count, -1).index_select(0, index).view(-1)
        shape = torch.Size((index.numel(), *self.shape[1:]))
        return dataclasses.replace(self, codes=codes, scales=scales, shape=shape)

    def slice_rows(self, start: int, stop: int) -> Encoded:
        """Returns a range of rows as a view of the same memory; see `take_rows`.

        Args:
            start: first row.
            stop: row after the last.
        """
        count = self.shape[0]
        codes = self.codes.view(count, -1)[start:stop].view(-1)
        scales = self.scales
        if scales is not None and scales.numel():
            scales = scales.view(count, -1)[start:stop].view(-1)
        shape = torch.Size((stop - start, *self.shape[1:]))
        return dataclasses.replace(self, codes=codes, scales=scales, shape=shape)
