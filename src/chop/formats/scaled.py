"""Formats that are a set of elements times a scale per group, or no scale at all."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.formats.base import Encoded, NumberFormat, check_range
from chop.formats.chunks import chunks
from chop.formats.elements import Element
from chop.formats.groups import Blocks, Groups
from chop.formats.packing import pack_bits, unpack_bits
from chop.formats.scaling import Scales, Scaling

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
        parts = [
            pack_bits(element.stored(element.round(part.double())), element.width)
            for part in chunks(x.reshape(-1))  # a chunk fills whole bytes
        ]
        return Encoded(torch.cat(parts), x.shape, x.dtype)

    def decode(self, encoded: Encoded) -> Tensor:
        """The values of the codes."""
        codes = unpack_bits(encoded.codes, self.element.width, encoded.shape.numel())
        values = _reader(self.element, codes.device)
        y = torch.empty(codes.shape, dtype=encoded.dtype, device=codes.device)
        for target, part in zip(chunks(y), chunks(codes), strict=True):
            target.copy_(cast(values(part), y.dtype))
        return y.view(encoded.shape)

    def keeps_rows_apart(self, shape: Sequence[int]) -> bool:
        """True where rows fill whole bytes."""
        return math.prod(shape) > 0 and self.element.width * math.prod(shape[1:]) % 8 == 0

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
        parts = self._parts(groups)
        rounded = torch.cat([cast(self._round_groups(part.double()), x.dtype) for part in parts])
        return self.groups.join(rounded.view(groups.shape), x.shape)

    def _parts(self, groups: Tensor) -> Sequence[Tensor]:
        """(rows, group size) each; all at once where a scale cannot be told from a part."""
        rows = groups.reshape(-1, groups.size(-1))
        return (rows,) if self.scaling.looks_at_all else chunks(rows, rows.size(-1))

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
        groups = self.groups.split(x)
        parts = [self._encode_groups(part.double()) for part in self._parts(groups)]
        codes = torch.cat([codes for codes, _ in parts]).view(groups.shape)
        scales = self.scaling.pack(torch.cat([scales.codes for _, scales in parts]))
        packed = pack_bits(self.groups.join(codes, x.shape), self.element.width)
        return Encoded(packed, x.shape, x.dtype, scales, parts[0][1].of_tensor)

    def _encode_groups(self, groups: Tensor) -> tuple[Tensor, Scales]:
        """Codes in the narrowest dtype that holds them, and scales."""
        scales = self.scaling.measure(groups)
        codes = self.element.stored(self.element.round(_divide(groups, scales.values)))
        return codes.to(torch.uint8 if self.element.width <= 8 else torch.int64), scales

    def decode(self, encoded: Encoded) -> Tensor:
        """The values of the codes times the scales."""
        shape, element = encoded.shape, self.element
        codes = unpack_bits(encoded.codes, element.width, shape.numel()).view(shape)
        groups = self.groups.split(codes)
        rows = groups.reshape(-1, groups.size(-1))
        assert encoded.scales is not None
        count = self.groups.count(shape)
        scales = self.scaling.restore(encoded.scales, count, encoded.tensor_scale)
        y = torch.empty(rows.shape, dtype=encoded.dtype, device=codes.device)
        if y.dtype == torch.float32 and _float32_does(element, scales):
            scales = scales.float()
        values = _reader(element, codes.device, scales.dtype)
        parts = (chunks(x, rows.size(-1)) for x in (y, rows, scales))
        for target, part, scale in zip(*parts, strict=True):
            target.copy_(cast(values(part) * scale, y.dtype))
        return self.groups.join(y.view(groups.shape), shape)

    def keeps_rows_apart(self, shape: Sequence[int]) -> bool:
        """True where no group has values of two rows, and rows fill whole bytes."""
        if len(shape) < 2 or math.prod(shape) == 0:
            return False
        scale_bits = self.scaling.width * self.groups.count(shape) // shape[0]
        fills_bytes = self.element.width * math.prod(shape[1:]) % 8 == scale_bits % 8 == 0
        return fills_bytes and self.groups.keep_rows_apart(len(shape))

    def saturates(self, x: Tensor) -> Tensor:
        """True beyond the largest element times the group's scale."""
        groups = self.groups.split(x.double())
        outside = self.element.saturates(_divide(groups, self.scaling.measure(groups).values))
        return self.groups.join(outside, x.shape)


def _reader(
    element: Element, device: torch.device, dtype: torch.dtype = torch.float64
) -> Callable[[Tensor], Tensor]:
    """The function from an element's codes to its values: by a table where codes are bytes."""
    if element.width > 8:
        return lambda codes: element.values(codes).to(dtype)
    table = _table(element, device).to(dtype)
    return lambda codes: table.index_select(0, codes.reshape(-1).int()).view(codes.shape)


def _table(element: Element, device: torch.device) -> Tensor:
    return element.values(torch.arange(2**element.width, device=device))


def _float32_does(element: Element, scales: Tensor) -> bool:
    """Whether elements times scales, rounded to float32, can be computed in float32.

    The product of two float32 numbers is exact in float64. So both ways round once if elements
    and scales are float32 numbers (or NaN), and finite products stay finite.
    """
    if element.width > 8 or scales.numel() == 0:
        return False
    values = _table(element, scales.device)
    top = element.largest * scales.nan_to_num(nan=0.0).abs().amax()
    return _is_float32(values) and _is_float32(scales) and bool(top <= torch.finfo(torch.float).max)


def _is_float32(x: Tensor) -> bool:
    return bool(((x.float().double() == x) | x.isnan()).all())


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
