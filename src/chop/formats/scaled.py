"""Formats that are a set of elements times a scale per group, or no scale at all."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated

from chop.config import Range
from chop.errors import ConfigError
from chop.formats.base import NumberFormat
from chop.formats.elements import Element
from chop.formats.groups import Blocks, Groups
from chop.formats.layout import Layout
from chop.formats.scaling import Scaling

MAX_BLOCK = 2**20
BlockSize = Annotated[int | tuple[int, ...], Range(1, MAX_BLOCK, "elements")]
"""Elements of a block along its axis; several for blocks of several axes."""


class ElementFormat(NumberFormat):
    """Each value becomes an element, by itself."""

    @property
    @abstractmethod
    def element(self) -> Element:
        """The set of numbers."""

    def layout(self) -> Layout:
        """The elements."""
        return Layout(self.element)


class ScaledFormat(NumberFormat):
    """Each value becomes an element times the scale of its group."""

    @property
    @abstractmethod
    def element(self) -> Element:
        """The set of numbers that is scaled."""

    @property
    @abstractmethod
    def groups(self) -> Groups:
        """Which elements share a scale."""

    @property
    @abstractmethod
    def scaling(self) -> Scaling:
        """How a group's scale is found and stored."""

    def layout(self) -> Layout:
        """The elements times the scales."""
        return Layout(self.element, self.groups, self.scaling)


@dataclass(frozen=True, kw_only=True)
class BlockFormat(ScaledFormat):
    """A scaled format whose groups are blocks.

    Attributes:
        block_size: elements of a block along its axis: 16 or [16]; [2, 16] for blocks of two
            axes, [1, 16] is 16. The last block of a row may be shorter.
        block_dim: the axis along which blocks run.
        skip_first_dim: keeps the first axis of several, the samples', out of blocks of two axes.
    """

    block_size: BlockSize = 16
    block_dim: int = -1
    skip_first_dim: bool = False

    def validate(self) -> None:
        """Raises ConfigError where a block size or what the format adds is out of range."""
        sizes = (self.block_size,) if isinstance(self.block_size, int) else tuple(self.block_size)
        while len(sizes) > 1 and sizes[0] == 1:
            sizes = sizes[1:]
        if not sizes:
            raise ConfigError(f"{self.name}.block_size: expected a size such as 16, got [].")
        object.__setattr__(self, "block_size", sizes[0] if len(sizes) == 1 else sizes)
        self.validate_element()

    def validate_element(self) -> None:
        """Raises ConfigError where fields that the format adds do not fit together."""

    @property
    def groups(self) -> Blocks:
        """Blocks."""
        size = self.block_size
        return Blocks(
            (size,) if isinstance(size, int) else size, self.block_dim, self.skip_first_dim
        )
