"""Streams: order and lanes in which the codes of a tensor are transferred."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.nn.integer import Edge


class OrderError(ConfigError):
    """Raised if a component needs the codes of an input in another order.

    Args:
        message: the reason.
        wanted: by input, int64 positions that the component accepts, in a shape to which the
            input's shape broadcasts.
        is_choice: one of the inputs in another order suffices.
    """

    def __init__(self, message: str, wanted: Mapping[int, Tensor], is_choice: bool = False) -> None:
        super().__init__(message)
        self.wanted, self.is_choice = wanted, is_choice


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a stream, transferred in turn. A row has the elements of the last dimensions.

    Attributes:
        count: rows of a sample.
        features: elements of a row.
        places: int64, shape of a sample without the last dimensions: stream index of each row.
        order: int64 (features,): position of each feature within its row, equal in all rows.
    """

    count: int
    features: int
    places: Tensor
    order: Tensor


@dataclass(frozen=True, eq=False)
class Stream:
    """Codes of a tensor on a ready/valid interface, sample by sample.

    Attributes:
        positions: int64, shape of one sample without the batch: stream position of each element,
            a permutation of 0 to size - 1.
        edge: meaning of the codes; each takes `edge.bits` bits in two's complement.
        lanes: codes in one beat, a divisor of the size. Position p is lane p % lanes of beat
            p // lanes.
    """

    positions: Tensor
    edge: Edge
    lanes: int

    def __post_init__(self) -> None:
        if self.size % self.lanes:
            raise ConfigError(f"{self.lanes} lanes do not divide the {self.size} codes of a stream")

    @classmethod
    def in_order(cls, shape: tuple[int, ...], edge: Edge, lanes: int = 1) -> Self:
        """Returns a stream that sends the last dimension fastest."""
        return cls(torch.arange(math.prod(shape)).view(shape), edge, lanes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.positions.shape)

    @property
    def size(self) -> int:
        """Codes of one sample."""
        return self.positions.numel()

    @property
    def beats(self) -> int:
        """Beats of one sample."""
        return self.size // self.lanes

    @property
    def width(self) -> int:
        """Bits of one code."""
        return self.edge.bits

    @property
    def bits(self) -> int:
        """Bits of one beat."""
        return self.lanes * self.width

    def with_lanes(self, lanes: int) -> Self:
        """Returns the stream in the same order with other lanes."""
        return replace(self, lanes=lanes)

    def of(self, edge: Edge) -> Self:
        """Returns an elementwise operator's output stream: same order and beats, other codes."""
        return replace(self, edge=edge)

    def sent(self, codes: Tensor) -> Tensor:
        """Returns the beats of codes (samples, *shape) as int64 (samples * beats, lanes)."""
        order = self.positions.flatten().argsort()
        return codes.reshape(-1, self.size)[:, order].reshape(-1, self.lanes)

    def received(self, beats: Tensor) -> Tensor:
        """Returns the codes of beats (samples * beats, lanes) as int64 (samples, *shape)."""
        return beats.reshape(-1, self.size)[:, self.positions.flatten()].view(-1, *self.shape)

    def rows(self, dims: int = 1) -> Rows:
        """Returns the rows along the last `dims` dimensions.

        Raises:
            OrderError: if a row is interrupted by others, or feature orders differ.
        """
        shape = self.shape[: len(self.shape) - dims]
        flat = self.positions.reshape(math.prod(shape), -1)
        count, features = flat.shape
        # All positions of an uninterrupted row have the same quotient.
        places, order = flat // features, flat % features
        if bool((places != places[:, :1]).any()) or bool((order != order[:1]).any()):
            raise OrderError(
                f"rows of {features} elements are interleaved, or differ in the order of elements",
                {0: torch.arange(self.size).view(self.shape)},
            )
        return Rows(count, features, places[:, 0].view(shape), order[0])
