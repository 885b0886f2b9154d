"""Base classes of formats that consist of elements with a scale per group or without scales."""

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
"""Elements of a block along its axis; a tuple for blocks of several axes."""


class ElementFormat(NumberFormat):
    """Format that rounds each value to an element."""

    @property
    @abstractmethod
    def element(self) -> Element:
        """Set of numbers."""

    def layout(self) -> Layout:
        """Returns the elements without scales."""
        return Layout(self.element)


class ScaledFormat(NumberFormat):
    """Format that rounds each value to an element times the scale of its group."""

    @property
    @abstractmethod
    def element(self) -> Element:
        """Set of numbers before scaling."""

    @property
    @abstractmethod
    def groups(self) -> Groups:
        """Elements that share a scale."""

    @property
    @abstractmethod
    def scaling(self) -> Scaling:
        """Measurement and storage of a group's scale."""

    def layout(self) -> Layout:
        """Returns the elements with their scales."""
        return Layout(self.element, self.groups, self.scaling)


@dataclass(frozen=True, kw_only=True)
class BlockFormat(ScaledFormat):
    """Scaled format with blocks as groups.

    Attributes:
        block_size: elements of a block along its axis: 16 or [16]; [2, 16] for blocks of two
            axes, [1, 16] is 16. The last block of a row may be shorter.
        block_dim: axis along which blocks run.
        skip_first_dim: excludes the first axis, which counts samples, from blocks of two axes.
    """

    block_size: BlockSize = 16
    block_dim: int = -1
    skip_first_dim: bool = False

    def validate(self) -> None:
        """Raises ConfigError if a block size or a field of the format is out of range."""
        sizes = (self.block_size,) if isinstance(self.block_size, int) else tuple(self.block_size)
        while len(sizes) > 1 and sizes[0] == 1:
            sizes = sizes[1:]
        if not sizes:
            raise ConfigError(f"{self.name}.block_size: expected a size such as 16, got [].")
        object.__setattr__(self, "block_size", sizes[0] if len(sizes) == 1 else sizes)
        self.validate_element()

    def validate_element(self) -> None:
        """Raises ConfigError if the format's own fields do not fit together."""

    @property
    def groups(self) -> Blocks:
        """Blocks."""
        size = self.block_size
        return Blocks(
            (size,) if isinstance(size, int) else size, self.block_dim, self.skip_first_dim
        )
