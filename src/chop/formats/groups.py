"""Groups of elements that share a scale: blocks along axes, rows, channels or whole tensors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch.nn.functional as F
from torch import Tensor

from chop.errors import ConfigError, describe

Granularity = Literal["tensor", "channel", "row"]
"""One scale for the tensor, for each index of the first axis, or for each row of the last axis."""


class BlockTiling(NamedTuple):
    """Contiguous tensor as matrices that are cut into blocks; those at the edges are smaller."""

    matrices: int
    rows: int
    columns: int
    block_rows: int
    block_columns: int


class Lines(NamedTuple):
    """Tensor as rows that have their own scales or share them.

    Attributes:
        rows: number of rows.
        columns: elements of a row.
        group: columns that share a scale; `ALL_COLUMNS` for all.
        groups_per_row: scales of a row; 0 if all rows share their scales.
    """

    rows: int
    columns: int
    group: int
    groups_per_row: int


ALL_COLUMNS = 2**62


class Groups(ABC):
    """Division of a tensor into groups, and its inverse."""

    nominal_size: float
    """Elements of a full group; infinite if it depends on the tensor."""

    @abstractmethod
    def split(self, x: Tensor) -> Tensor:
        """Returns (..., groups, group size), padding a ragged last group with zeros."""

    @abstractmethod
    def join(self, groups: Tensor, shape: Sequence[int]) -> Tensor:
        """Joins the result of `split` to a tensor of that shape."""

    @abstractmethod
    def count(self, shape: Sequence[int]) -> int:
        """Returns the number of groups in a tensor of that shape."""

    @abstractmethod
    def tiling(self, shape: Sequence[int]) -> BlockTiling | None:
        """Returns the tiling of a non-empty tensor in memory; None if elements must be moved."""

    def lines(self, shape: Sequence[int]) -> Lines | None:
        """Returns a non-empty tensor as rows of whole groups; None if groups cross rows.

        Codes are stored in the order of rows, scales in the order of groups.
        """
        count, columns = math.prod(shape), shape[-1] if shape else 1
        groups = self.count(shape)
        if groups == 1:
            return Lines(count // columns, columns, ALL_COLUMNS, 0)
        tiling = self.tiling(shape)
        if tiling is None or tiling.matrices > 1 or tiling.block_rows > 1:
            return None
        if tiling.block_columns == tiling.columns:
            return Lines(tiling.rows, tiling.columns, ALL_COLUMNS, 1)
        if tiling.columns != columns:
            return None
        per_row = -(-tiling.columns // tiling.block_columns)
        return Lines(tiling.rows, tiling.columns, tiling.block_columns, per_row)

    def separable_dims(self, rank: int) -> dict[int, int]:
        """Returns the dimensions along which a tensor can be cut without splitting a group.

        Returns: for each dimension, the multiple at which cuts are allowed; empty by default. If
            the first dimension has the multiple 1, the concatenated groups of its chunks are the
            groups of the tensor.
        """
        return {}

    @abstractmethod
    def is_row_separable(self, rank: int) -> bool:
        """Returns True if no group of a tensor of that rank, 2 or more, spans two rows.

        A row contains all elements with the same first index. Its groups are adjacent.
        """


@dataclass(frozen=True)
class Whole(Groups):
    """Groups that follow the tensor's shape.

    Attributes:
        granularity: `tensor`, `channel` or `row`; a vector or scalar is one channel and one row.
    """

    granularity: Granularity
    nominal_size: float = math.inf

    def __post_init__(self) -> None:
        if self.granularity not in get_args(Granularity):
            choices = ", ".join(get_args(Granularity))
            raise ConfigError(
                f"Whole: expected one of {choices}, got {describe(self.granularity)}."
            )

    def split(self, x: Tensor) -> Tensor:
        """Returns (groups, elements per group)."""
        return x.reshape(self.count(x.shape), -1) if x.numel() else x.reshape(0, 1)

    def join(self, groups: Tensor, shape: Sequence[int]) -> Tensor:
        """Restores the shape."""
        return groups.reshape(shape)

    def count(self, shape: Sequence[int]) -> int:
        """Returns 1, the first size, or the number of rows; 0 for an empty tensor."""
        if math.prod(shape) == 0:
            return 0
        if self.granularity == "tensor" or len(shape) < 2:
            return 1
        return shape[0] if self.granularity == "channel" else math.prod(shape[:-1])

    def tiling(self, shape: Sequence[int]) -> BlockTiling:
        """Returns one matrix row per group."""
        count = self.count(shape)
        size = math.prod(shape) // count
        return BlockTiling(1, count, size, 1, size)

    def separable_dims(self, rank: int) -> dict[int, int]:
        """Returns the first dimension for channels, all but the last for rows, none for tensors."""
        if self.granularity == "tensor" or rank < 2:
            return {}
        return {0: 1} if self.granularity == "channel" else dict.fromkeys(range(rank - 1), 1)

    def is_row_separable(self, rank: int) -> bool:
        """Returns False for one scale per tensor."""
        return self.granularity != "tensor"


@dataclass(frozen=True)
class Blocks(Groups):
    """Blocks of a fixed size. The last block of a row is padded; no block crosses rows.

    Attributes:
        sizes: block size along the last axes, after `dim` is moved last. Tensors with fewer axes
            use the last sizes.
        dim: axis along which blocks run; tensors without it use their last axis.
        skip_first_dim: never cuts the first of several axes into blocks: it counts samples.
    """

    sizes: tuple[int, ...]
    dim: int = -1
    skip_first_dim: bool = False

    def __post_init__(self) -> None:
        is_tuple = isinstance(self.sizes, tuple) and len(self.sizes) > 0
        if not is_tuple or not all(isinstance(size, int) and size > 0 for size in self.sizes):
            raise ConfigError(
                f"Blocks: expected a tuple of positive sizes, such as (32,), got "
                f"{describe(self.sizes)}."
            )

    @property
    def nominal_size(self) -> float:  # type: ignore[override]
        """Elements of a block."""
        return math.prod(self.sizes)

    def split(self, x: Tensor) -> Tensor:
        """Returns (..., blocks, block size)."""
        if x.numel() == 0:
            return x.reshape(0, 1)
        x = x.reshape(1) if x.ndim == 0 else x.movedim(self._axis(x.ndim), -1)
        sizes = self._sizes(x.ndim)
        missing = [-size % block for size, block in zip(x.shape[::-1], sizes[::-1], strict=False)]
        if any(missing):  # `pad` copies even if there is nothing to add
            x = F.pad(x, [amount for after in missing for amount in (0, after)])
        first = x.ndim - len(sizes)
        for axis, block in enumerate(sizes, first):
            x = x.unfold(axis, block, block)
        return x.flatten(-len(sizes))

    def join(self, groups: Tensor, shape: Sequence[int]) -> Tensor:
        """Puts the blocks in their places and removes the padding."""
        if groups.numel() == 0:
            return groups.reshape(shape)
        rank = max(len(shape), 1)
        sizes, axis = self._sizes(rank), self._axis(rank)
        first, count = rank - len(sizes), len(sizes)
        moved = [size for i, size in enumerate(shape or (1,)) if i != axis % rank]
        moved.append((shape or (1,))[axis])
        tiles = groups.unflatten(-1, sizes)
        for i in range(count):  # each block axis goes behind the axis that counts its blocks
            tiles = tiles.movedim(first + count + i, first + 2 * i + 1)
        for i in range(count):
            tiles = tiles.flatten(first + i, first + i + 1).narrow(first + i, 0, moved[first + i])
        joined: Tensor = tiles.movedim(-1, axis).reshape(shape)
        return joined

    def count(self, shape: Sequence[int]) -> int:
        """Returns the number of blocks, including ragged ones."""
        if math.prod(shape) == 0 or not shape:
            return int(math.prod(shape) > 0)
        sizes, axis = self._sizes(len(shape)), self._axis(len(shape))
        moved = [size for i, size in enumerate(shape) if i != axis % len(shape)] + [shape[axis]]
        blocks = [-(-size // block) for size, block in zip(moved[::-1], sizes[::-1], strict=False)]
        return math.prod(blocks) * math.prod(moved[: len(moved) - len(sizes)])

    def tiling(self, shape: Sequence[int]) -> BlockTiling | None:
        """Returns the tiling of blocks along any one axis, or along the last two."""
        shape = shape or (1,)
        rank = len(shape)
        sizes, axis = self._sizes(rank), self._axis(rank) % rank
        if len(sizes) == 1:
            before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
            if after == 1:
                return BlockTiling(1, before, shape[axis], 1, sizes[0])
            return BlockTiling(before, shape[axis], after, sizes[0], 1)
        if len(sizes) == 2 and axis == rank - 1:
            return BlockTiling(math.prod(shape[:-2]), shape[-2], shape[-1], sizes[0], sizes[1])
        return None

    def separable_dims(self, rank: int) -> dict[int, int]:
        """Returns all dimensions, with multiples of the block size along which blocks run."""
        if rank == 0:
            return {}
        axis = self._axis(rank) % rank
        moved = [dim for dim in range(rank) if dim != axis] + [axis]
        sizes = self._sizes(rank)
        return dict.fromkeys(range(rank), 1) | dict(zip(moved[::-1], sizes[::-1], strict=False))

    def is_row_separable(self, rank: int) -> bool:
        """Returns True for blocks along the last axis only."""
        return len(self._sizes(rank)) == 1 and self._axis(rank) % rank == rank - 1

    def _axis(self, rank: int) -> int:
        return self.dim if -rank <= self.dim < rank else -1

    def _sizes(self, rank: int) -> tuple[int, ...]:
        return self.sizes[-max(rank - (self.skip_first_dim and rank > 1), 1) :]


WHOLE_TENSOR, CHANNELS = Whole("tensor"), Whole("channel")
