"""Encoded tensor: codes and scales that a format stores."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Encoded:
    """A tensor as a format stores it, which has no gradient.

    Attributes:
        codes: uint8, one-dimensional: the elements' codes, bit-packed in row-major order.
        shape: shape of the decoded tensor.
        dtype: dtype of the decoded tensor.
        scales: scales shared by several elements, in row-major order of their groups, or None:
            float32 numbers, or uint8 bytes of bit-packed codes.
        tensor_scale: float32 scalar, a factor of all scales, or None.
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
        """Bytes that codes and scales occupy."""
        stored = (self.codes, self.scales, self.tensor_scale)
        return sum(tensor.nbytes for tensor in stored if tensor is not None)

    def take_rows(self, index: Tensor) -> Encoded:
        """The rows of that index, of a tensor whose format keeps rows apart.

        Args:
            index: integers, one-dimensional: positions along the first axis.
        Returns: an encoded tensor of the shape (index size, *shape[1:]).
        """
        count = self.shape[0]
        codes = self.codes.view(count, -1).index_select(0, index).view(-1)
        scales = self.scales
        if scales is not None and scales.numel():
            scales = scales.view(count, -1).index_select(0, index).view(-1)
        shape = torch.Size((index.numel(), *self.shape[1:]))
        return dataclasses.replace(self, codes=codes, scales=scales, shape=shape)

    def slice_rows(self, start: int, stop: int) -> Encoded:
        """Neighboring rows, in the same memory; see `take_rows`.

        Args:
            start: the first one.
            stop: the one behind the last.
        """
        count = self.shape[0]
        codes = self.codes.view(count, -1)[start:stop].view(-1)
        scales = self.scales
        if scales is not None and scales.numel():
            scales = scales.view(count, -1)[start:stop].view(-1)
        shape = torch.Size((stop - start, *self.shape[1:]))
        return dataclasses.replace(self, codes=codes, scales=scales, shape=shape)
