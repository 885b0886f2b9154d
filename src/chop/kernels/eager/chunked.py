"""Walks over tensors in chunks that stay in the caches, through buffers made once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 2**15 - 64
"""Elements worked on at a time. From 2^15 on, torch divides some operations among threads, which
for so few costs more than it gains; the difference keeps chunks aligned to cache lines."""


@dataclass(frozen=True, eq=False)
class Real:
    """A dtype to compute in.

    Attributes:
        dtype: of the numbers.
        bits_dtype: integers of the same size.
        fraction_bits: stored bits of the significand.
        bias: of the exponent.
    """

    dtype: torch.dtype
    bits_dtype: torch.dtype
    fraction_bits: int
    bias: int

    @property
    def infinite(self) -> int:
        """The bits of infinity, which are those of the exponent field."""
        return (2 * self.bias + 1) << self.fraction_bits

    @property
    def sign(self) -> int:
        """The bit of the sign."""
        return torch.iinfo(self.bits_dtype).min


FLOAT32 = Real(torch.float32, torch.int32, 23, 127)
FLOAT64 = Real(torch.float64, torch.int64, 52, 1023)


class Lane(NamedTuple):
    """A tensor to compute with, and its bits as integers in the same memory."""

    values: Tensor
    bits: Tensor


class Buffers:
    """Uninitialized tensors that are made once and then lent again and again.

    Args:
        size: elements of the largest tensor that will be asked for.
        device: theirs.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self._size, self._device = size, device
        self._flat: dict[tuple[str, torch.dtype], Tensor] = {}
        self._shaped: dict[tuple[str, torch.dtype, torch.Size], Tensor] = {}
        self._lanes: dict[tuple[str, Real, torch.Size], Lane] = {}
        self._constants: dict[tuple[float, torch.dtype], Tensor] = {}

    def get(self, name: str, dtype: torch.dtype, shape: torch.Size) -> Tensor:
        """The buffer of that name in this shape; same name and dtype, same memory."""
        found = self._shaped.get((name, dtype, shape))
        if found is None:
            flat = self._flat.get((name, dtype))
            if flat is None:
                flat = torch.empty(self._size, dtype=dtype, device=self._device)
                self._flat[name, dtype] = flat
            found = flat[: math.prod(shape)].view(shape)
            self._shaped[name, dtype, shape] = found
        return found

    def lane(self, name: str, real: Real, shape: torch.Size) -> Lane:
        """The buffer of that name as a lane."""
        found = self._lanes.get((name, real, shape))
        if found is None:
            values = self.get(name, real.dtype, shape)
            found = Lane(values, values.view(real.bits_dtype))
            self._lanes[name, real, shape] = found
        return found

    def constant(self, value: float, dtype: torch.dtype) -> Tensor:
        """A scalar, not -0: operations take it microseconds sooner than a Python number."""
        found = self._constants.get((value, dtype))
        if found is None:
            found = torch.tensor(value, dtype=dtype, device=self._device)
            self._constants[value, dtype] = found
        return found


def pairs(x: Tensor, out: Tensor) -> Iterator[tuple[Tensor, Tensor, Buffers]]:
    """Chunks of two tensors along their first axis, of whole rows, and buffers for them."""
    row_size = math.prod(x.shape[1:])
    rows = max(_chunk_size(x) // row_size, 1)
    buffers = Buffers(min(rows * row_size, x.numel()), x.device)
    for part, out_part in zip(x.split(rows), out.split(rows), strict=True):
        yield part, out_part, buffers


def line_chunks(lines: Tensor, *beside: Tensor) -> Iterator[tuple[list[Tensor], Buffers]]:
    """Chunks of lines and of the tensors beside them, and buffers; long lines are cut.

    Args:
        lines: (lines, elements).
        beside: the same shape; or (lines, 1), and then lines have their part of it.
    """
    size = _chunk_size(lines)
    tensors = (lines, *beside)
    buffers = Buffers(min(size, lines.numel()), lines.device)
    if lines.size(1) <= size:
        rows = size // lines.size(1)
        for parts in zip(*(x.split(rows) for x in tensors), strict=True):
            yield list(parts), buffers
        return
    for row in zip(*tensors, strict=True):
        for start in range(0, lines.size(1), size):
            yield [x if x.numel() == 1 else x[start : start + size] for x in row], buffers


def _chunk_size(x: Tensor) -> int:
    """Other devices than CPUs take everything at once."""
    return CHUNK if x.device.type == "cpu" else x.numel()
