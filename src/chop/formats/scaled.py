"""Formats that are a set of elements times a scale per group, or no scale at all."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.formats.base import Encoded, NumberFormat, check_range
from chop.formats.chunks import chunks
from chop.formats.elements import Element
from chop.formats.groups import Blocks, Groups
from chop.formats.packing import pack_bits, unpack_bits
from chop.formats.scaling import Scaling

MAX_BLOCK = 2**20


def cast(y: Tensor, dtype: torch.dtype) -> Tensor:
    """`y` in another floating dtype; finite numbers beyond its largest one become that."""
    limits = torch.finfo(dtype)
    return torch.where(y.isinf(), y, y.clamp(limits.min, limits.max)).to(dtype)


class ElementFormat(NumberFormat):
    """Each value becomes an element, by itself. Computed in float64."""

    @property
    @abstractmethod
    def element(self) -> Element:
        """The set of numbers."""

    def round(self, x: Tensor) -> Tensor:
        """The element for each value; a dtype that cannot hold it rounds once more.

        Args:
            x: any shape and floating dtype; infinities saturate, NaN stays NaN.
        Returns: same shape and dtype as `x`.
        """
        element = self.element
        parts = [cast(element.round(part.double()), x.dtype) for part in chunks(x.reshape(-1))]
        return torch.cat(parts).view(x.shape)

    def bits(self, shape: Sequence[int] = ()) -> float:
        """The element's width."""
        return float(self.element.width)

    def encode(self, x: Tensor) -> Encoded:
        """The elements' codes; NaN is 0 where the format has none."""
        element = self.element
        codes = element.stored(element.round(x.double()))
        return Encoded(pack_bits(codes, element.width), x.shape, x.dtype)

    def decode(self, encoded: Encoded) -> Tensor:
        """The values of the codes."""
        codes = unpack_bits(encoded.codes, self.element.width, encoded.shape.numel())
        return cast(self.element.values(codes), encoded.dtype).view(encoded.shape)

    def saturates(self, x: Tensor) -> Tensor:
        """True beyond the largest element."""
        return self.element.saturates(x.double())


class ScaledFormat(NumberFormat):
    """Each value becomes an element times the scale of its group. Computed in float64."""

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

    def round(self, x: Tensor) -> Tensor:
        """The scaled element for each value; a dtype that cannot hold it rounds once more.

        Args:
            x: any shape and floating dtype.
        Returns: same shape and dtype as `x`.
        """
        groups = self.groups.split(x)
        rows = groups.reshape(-1, groups.size(-1))
        # A scale of the whole tensor must see the whole tensor.
        parts = (rows,) if self.scaling.tensor_width else chunks(rows, rows.size(-1))
        rounded = torch.cat([cast(self._round_groups(part.double()), x.dtype) for part in parts])
        return self.groups.join(rounded.view(groups.shape), x.shape)

    def _round_groups(self, groups: Tensor) -> Tensor:
        scale = self.scaling.measure(groups).values
        return self.element.round(_divide(groups, scale)) * scale

    def bits(self, shape: Sequence[int] = ()) -> float:
        """The element's width and its part of the group's scale; `()`: in a full group."""
        scaling, groups = self.scaling, self.groups
        if not shape:
            return self.element.width + scaling.width / groups.nominal_size
        scale_bits = scaling.width * groups.count(shape) + scaling.tensor_width
        return self.element.width + scale_bits / max(math.prod(shape), 1)

    def encode(self, x: Tensor) -> Encoded:
        """The elements' codes in the order of `x`, without padding, and the groups' scales."""
        element, groups = self.element, self.groups.split(x.double())
        scales = self.scaling.measure(groups)
        codes = element.stored(element.round(_divide(groups, scales.values)))
        packed = pack_bits(self.groups.join(codes, x.shape), element.width)
        stored = self.scaling.pack(scales.codes)
        return Encoded(packed, x.shape, x.dtype, stored, scales.of_tensor)

    def decode(self, encoded: Encoded) -> Tensor:
        """The values of the codes times the scales."""
        shape = encoded.shape
        codes = unpack_bits(encoded.codes, self.element.width, shape.numel()).view(shape)
        groups = self.groups.split(codes)
        assert encoded.scales is not None
        count = self.groups.count(shape)
        scale = self.scaling.restore(encoded.scales, count, encoded.tensor_scale)
        y = self.element.values(groups) * scale.view(*groups.shape[:-1], 1)
        return cast(self.groups.join(y, shape), encoded.dtype)

    def saturates(self, x: Tensor) -> Tensor:
        """True beyond the largest element times the group's scale."""
        groups = self.groups.split(x.double())
        outside = self.element.saturates(_divide(groups, self.scaling.measure(groups).values))
        return self.groups.join(outside, x.shape)


def _divide(groups: Tensor, scale: Tensor) -> Tensor:
    """`groups / scale`; groups of scale zero stay: whatever they are times zero is zero."""
    return groups / scale.masked_fill(scale == 0, 1.0)


@dataclass(frozen=True, kw_only=True)
class BlockFormat(ScaledFormat):
    """A scaled format whose groups are blocks.

    Attributes:
        block_size: elements of a block along its axis: 16 or [16]; [2, 16] for blocks of two
            axes, [1, 16] is 16. The last block of a row may be shorter.
        block_dim: the axis along which blocks run.
        skip_first_dim: keeps the first axis of several, the samples', out of blocks of two axes.
    """

    block_size: int | tuple[int, ...] = 16
    block_dim: int = -1
    skip_first_dim: bool = False

    def validate(self) -> None:
        """Raises ConfigError where a block size or what the format adds is out of range."""
        sizes = (self.block_size,) if isinstance(self.block_size, int) else tuple(self.block_size)
        for size in sizes:
            check_range(f"{self.name}.block_size", size, range(1, MAX_BLOCK + 1), "elements")
        while len(sizes) > 1 and sizes[0] == 1:
            sizes = sizes[1:]
        if not sizes:
            raise ConfigError(f"{self.name}.block_size: expected a size such as 16, got [].")
        object.__setattr__(self, "block_size", sizes[0] if len(sizes) == 1 else sizes)
        self.validate_element()

    @abstractmethod
    def validate_element(self) -> None:
        """Raises ConfigError where a width is out of range."""

    @property
    def groups(self) -> Blocks:
        """Blocks."""
        size = self.block_size
        return Blocks(
            (size,) if isinstance(size, int) else size, self.block_dim, self.skip_first_dim
        )
