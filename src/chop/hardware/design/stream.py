"""Streams: in which order, and how many at a time, the codes of a tensor travel over wires."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.nn.integer import Edge


@dataclass(frozen=True, eq=False)
class Rows:
    """A stream whose rows, the elements along the last dimensions, travel one after another.

    Attributes:
        count: how many rows a sample has.
        features: how many elements a row has.
        places: int64, shape of a sample without the last dimensions: which row of the stream each
            is.
        order: int64 (features,): place of each feature within its row, the same in all rows.
    """

    count: int
    features: int
    places: Tensor
    order: Tensor


@dataclass(frozen=True, eq=False)
class Stream:
    """Codes of a tensor on a ready/valid interface, sample after sample.

    Attributes:
        positions: int64, shape of one sample, without the batch: at which place of the stream each
            element travels; a permutation of 0 to size - 1.
        edge: what the codes mean; each takes `edge.bits` wires, two's complement.
        lanes: codes in one beat; divides the size. Place p is lane p % lanes of beat p // lanes.
    """

    positions: Tensor
    edge: Edge
    lanes: int

    def __post_init__(self) -> None:
        if self.size % self.lanes:
            raise ConfigError(f"a stream of {self.size} codes: {self.lanes} lanes do not divide it")

    @classmethod
    def in_order(cls, shape: tuple[int, ...], edge: Edge, lanes: int = 1) -> Self:
        """A stream that sends the last dimension fastest."""
        return cls(torch.arange(math.prod(shape)).view(shape), edge, lanes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
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
        """Wires of one code."""
        return self.edge.bits

    @property
    def bits(self) -> int:
        """Wires of one beat."""
        return self.lanes * self.width

    def with_lanes(self, lanes: int) -> Self:
        """The same order with other beats."""
        return replace(self, lanes=lanes)

    def of(self, edge: Edge) -> Self:
        """The stream of an elementwise operator: other codes in the same order and beats."""
        return replace(self, edge=edge)

    def sent(self, codes: Tensor) -> Tensor:
        """int64 (samples * beats, lanes): the beats of codes (samples, *shape)."""
        order = self.positions.flatten().argsort()
        return codes.reshape(-1, self.size)[:, order].reshape(-1, self.lanes)

    def received(self, beats: Tensor) -> Tensor:
        """int64 (samples, *shape): the codes of beats (samples * beats, lanes)."""
        return beats.reshape(-1, self.size)[:, self.positions.flatten()].view(-1, *self.shape)

    def rows(self, dims: int = 1) -> Rows:
        """The rows along the last `dims` dimensions.

        Raises:
            ConfigError: a row is interrupted by others, or the order of features differs.
        """
        shape = self.shape[: len(self.shape) - dims]
        flat = self.positions.reshape(math.prod(shape), -1)
        count, features = flat.shape
        places, order = flat // features, flat % features
        if bool((places != places[:, :1]).any()) or bool((order != order[:1]).any()):
            raise ConfigError(
                f"rows of {features} elements do not travel one after another, in one order"
            )
        return Rows(count, features, places[:, 0].view(shape), order[0])
