"""`k_quant`: the K-quants of llama.cpp, integers with integer scales in super-blocks of 256."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.config import Range
from chop.formats.base import NumberFormat
from chop.formats.chunks import chunks
from chop.formats.elements import Fixed
from chop.formats.encoded import Encoded
from chop.formats.groups import Blocks
from chop.formats.packing import GROUP, pack_bits, unpack_bits
from chop.formats.reference import cast
from chop.formats.searched_scale import SearchedScale

SUPER = 256
"""Elements of a super-block."""
HALF = 2
"""Bytes of a float16."""
FITS = 7
"""Number of ranges that the search tries for a group with a minimum."""
FIT_START, FIT_STEP = -0.9, 0.25
"""First number of codes added to a range, and the step to the next."""
TINY_GROUP = 1e-30


class _Kind(NamedTuple):
    """Super-block of a width.

    Attributes:
        group: elements of a group.
        scale_width: bits of a group's scale, and of its minimum.
        has_minimum: True if values are s k - m, with unsigned s, k and m.
    """

    group: int
    scale_width: int
    has_minimum: bool


KINDS = {
    2: _Kind(16, 4, True),
    3: _Kind(16, 6, False),
    4: _Kind(32, 6, True),
    5: _Kind(32, 6, True),
    6: _Kind(16, 8, False),
}


class _Parts(NamedTuple):
    """Scales of super-blocks.

    Attributes:
        scales: (supers, groups), integer scales.
        minima: same shape, integer minima, or None.
        factors: float16 (supers, 1), factor of the scales.
        minimum_factors: same shape, factor of the minima, or None.
    """

    scales: Tensor
    minima: Tensor | None
    factors: Tensor
    minimum_factors: Tensor | None


@dataclass(frozen=True)
class KQuant(NumberFormat):
    """K-quants of llama.cpp, Q2_K to Q6_K: integers with integer scales per group.

    Values: symmetric in 3 and 6 bits: d s k, with -2^(width-1) <= k < 2^(width-1). The signed scale
    s has 6 bits in Q3_K and 8 bits in Q6_K, and is shared by 16 elements. Asymmetric in 2, 4 and 5
    bits: d s k - e m, with 0 <= k < 2^width. The unsigned scale s and minimum m have 4 bits per 16
    elements in Q2_K, and 6 bits per 32 elements in Q4_K and Q5_K. d and e are float16, one of each
    per super-block of 256 elements of a row. d s k and e m are computed in float32, and their
    difference is rounded to float32.
    Fitting: a search fits the scales to each group before they are rounded. It takes time, so the
    format is intended for weights.
    Rounding: to nearest, ties to even. Rounding a tensor twice can change it again.
    Saturation: infinities, and values beyond the scales, become the nearest end.
    Special values: NaN stays NaN in `round` and is encoded as the value nearest to 0.
    Storage: 2.625, 3.4375, 4.5, 5.5 and 6.5625 bits per element for 2 to 6 bits.

    Attributes:
        width: bits per element, 2 to 6.

    Example:
        >>> import torch
        >>> KQuant(4).round(torch.tensor([-0.8, 0.7, 0.1, 0.0])).mul(10).round().tolist()
        [-8.0, 7.0, 1.0, 0.0]

    Source: ggml, `ggml-common.h` and `ggml-quants.c`, the structures `block_q2_K` to `block_q6_K`.
    """

    name: ClassVar[str] = "k_quant"
    is_nested = True
    search_space: ClassVar[dict[str, Sequence[Any]]] = {"width": (3, 4, 5)}

    width: Annotated[int, Range(2, 6, "bits")] = 4

    @property
    def kind(self) -> _Kind:
        """Storage of a super-block."""
        return KINDS[self.width]

    @property
    def element(self) -> Fixed:
        """Integers k."""
        if self.kind.has_minimum:
            return Fixed(self.width, 0, "unsigned")
        return Fixed(self.width, 0, "twos_complement", is_symmetric=False)

    @property
    def scale_bytes(self) -> int:
        """Bytes of a super-block without its codes: scales, minima, and their factors."""
        count = SUPER // self.kind.group * self.kind.scale_width // 8
        return (count + HALF) * (1 + self.kind.has_minimum)

    @property
    def code_bits(self) -> float:
        """Bits of k."""
        return self.width

    def bits(self, shape: Sequence[int] = ()) -> float:
        """Returns the storage per element in bits, including scales; `()` for full blocks."""
        if not shape:
            return self.width + 8 * self.scale_bytes / SUPER
        count = max(math.prod(shape), 1)
        return self.width + 8 * self.scale_bytes * Blocks((SUPER,)).count(shape) / count

    def round(self, x: Tensor) -> Tensor:
        """Returns `decode(encode(x))`, with NaN where `x` is NaN."""
        return self.decode(self.encode(x)).masked_fill(x.isnan(), torch.nan)

    def saturates(self, x: Tensor) -> Tensor:
        """Returns True for values that round beyond the ends of their group."""
        wanted = [self._unclamped(rows)[0] for rows in _super_blocks(x)]
        codes = _joined(wanted, x)
        return (codes < self.element.lowest_code) | (codes > self.element.largest_code)

    def encode(self, x: Tensor) -> Encoded:
        """Encodes codes in the order of `x`, and a record of scales per super-block."""
        parts = [self._unclamped(rows) for rows in _super_blocks(x)]
        codes = _joined([one for one, _ in parts], x)
        codes = codes.clamp(self.element.lowest_code, self.element.largest_code).long()
        scales = torch.cat([self.pack_scales(*one) for _, one in parts])
        return Encoded(pack_bits(codes & 2**self.width - 1, self.width), x.shape, x.dtype, scales)

    def decode(self, encoded: Encoded) -> Tensor:
        """Decodes in float32, and converts to the dtype."""
        plain, stored, minima = self.flattened(encoded)
        as_floats = Encoded(stored.codes, stored.shape, torch.float32, stored.scales)
        y = plain.decode(as_floats)
        y = y if minima is None else subtract_groups(y, minima, self.kind.group)
        return y.double() if encoded.dtype == torch.float64 else cast(y, encoded.dtype)

    def is_row_separable(self, shape: Sequence[int]) -> bool:
        """Returns True if rows of a matrix consist of whole bytes."""
        return (
            len(shape) > 1 and math.prod(shape) > 0 and math.prod(shape[1:]) * self.width % 8 == 0
        )

    def flattened(self, encoded: Encoded) -> tuple[NumberFormat, Encoded, Tensor | None]:
        """Returns the codes with a float32 scale per group; see the base class."""
        kind, shape = self.kind, encoded.shape
        assert encoded.scales is not None
        parts = self.unpack_scales(encoded.scales)
        scales = _in_row(parts.scales.float() * parts.factors.float(), shape, kind.group)
        minima = None
        if parts.minima is not None and parts.minimum_factors is not None:
            minima = parts.minima.float() * parts.minimum_factors.float()
            minima = _in_row(minima, shape, kind.group)
        stored = Encoded(encoded.codes, shape, encoded.dtype, scales)
        return _plain_format(self.width), stored, minima

    def pack_scales(
        self,
        scales: Tensor,
        minima: Tensor | None,
        factors: Tensor,
        minimum_factors: Tensor | None,
    ) -> Tensor:
        """Packs the scales of super-blocks to uint8, one-dimensional; see `unpack_scales`.

        Args:
            scales: (supers, groups), integer scales.
            minima: same shape, or None.
            factors: float16 (supers, 1).
            minimum_factors: same shape, or None.
        """
        width = self.kind.scale_width
        size = SUPER // self.kind.group * width // 8
        pairs = [(scales, factors), (minima, minimum_factors)]
        record = [
            part
            for codes, factor in pairs
            if codes is not None and factor is not None
            for part in (
                pack_bits(codes.long() & 2**width - 1, width).view(len(codes), size),
                factor.half().contiguous().view(torch.uint8).view(len(codes), HALF),
            )
        ]
        return torch.cat(record, 1).view(-1)

    def unpack_scales(self, packed: Tensor) -> _Parts:
        """Unpacks the records of super-blocks: scales, their factor, minima, and their factor."""
        width, groups = self.kind.scale_width, SUPER // self.kind.group
        records = packed.view(-1, self.scale_bytes)
        unpacked = list[Tensor]()
        for record in records.chunk(1 + self.kind.has_minimum, 1):
            bits, factor = record.split([groups * width // 8, HALF], 1)
            codes = unpack_bits(bits.contiguous().view(-1), width, len(records) * groups)
            unpacked += [codes.view(len(records), groups), factor.contiguous().view(torch.float16)]
        scales, factors, *minima = unpacked
        if minima:
            return _Parts(scales, minima[0], factors, minima[1])
        spare = GROUP - width  # shifted there and back, the sign fills the spare bits
        return _Parts((scales << spare).view(torch.int8) >> spare, None, factors, None)

    def _unclamped(self, rows: Tensor) -> tuple[Tensor, _Parts]:
        """Returns unclamped codes of super-blocks, float64 (supers, 256), and their scales."""
        x = rows.double().nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf)
        # Sums of squares and cubes of float32 numbers are float64 numbers.
        finite = cast(x, torch.float32).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).double()
        groups = finite.view(-1, self.kind.group)
        parts = (self._with_minima if self.kind.has_minimum else self._signed)(groups)
        steps = (parts.scales * parts.factors.double())[..., None]
        moved = x.view(*steps.shape[:2], self.kind.group)
        if parts.minima is not None and parts.minimum_factors is not None:
            moved = moved + (parts.minima * parts.minimum_factors.double())[..., None]
        # A group of zeros has code 0; infinities beside them saturate.
        codes = moved / steps.masked_fill(steps == 0, torch.finfo(torch.float64).max)
        return codes.round().view(len(rows), SUPER), parts

    def _signed(self, groups: Tensor) -> _Parts:
        """Fits a scale of either sign to each group, and rounds the scales."""
        wanted = (
            SearchedScale(self.element.lowest_code)
            .measure(groups)
            .values.view(-1, SUPER // self.kind.group)
        )
        wanted = wanted.masked_fill(~groups.any(-1).view(wanted.shape), 0.0)
        lowest = -(2 ** (self.kind.scale_width - 1))
        peak = wanted.gather(1, wanted.abs().argmax(1, keepdim=True))
        factors = cast(peak / lowest, torch.float16)
        scales = (wanted / _divisor(factors)).round().clamp(lowest, -lowest - 1)
        return _Parts(scales.long(), None, factors, None)

    def _with_minima(self, groups: Tensor) -> _Parts:
        """Fits a scale and a minimum to each group, and rounds both."""
        last = 2**self.kind.scale_width - 1
        rounded = list[Tensor]()
        for wanted in _fit(groups, self.element.largest_code):
            by_super = wanted.view(-1, SUPER // self.kind.group)
            factors = cast(by_super.amax(1, keepdim=True) / last, torch.float16)
            codes = (by_super / _divisor(factors)).round().clamp(0, last)
            rounded += [codes.long(), factors]
        scales, factors, minima, minimum_factors = rounded
        # Without steps, minima would be the values of the whole group.
        return _Parts(scales, minima, factors, minimum_factors.masked_fill(factors == 0, 0.0))


@cache
def _plain_format(width: int) -> NumberFormat:
    """Returns the format of the codes with a float32 scale per group."""
    from chop.formats.scale_integer import ScaleInteger  # formats are listed in order of import

    kind = KINDS[width]
    return ScaleInteger(
        *(width, not kind.has_minimum),
        granularity="group",
        group_size=kind.group,
        is_symmetric=False,
    )


def subtract_groups(y: Tensor, offsets: Tensor, size: int) -> Tensor:
    """Subtracts a number per group of a row in place, and returns the tensor.

    Args:
        y: float32, contiguous.
        offsets: float32 (groups,), in the order of rows.
        size: elements of a group; the last one of a row may be shorter.
    """
    if not y.numel():
        return y
    columns = y.shape[-1] if y.ndim else 1
    rows, whole = y.view(-1, columns), columns // size
    by_row = offsets.view(len(rows), -1)
    rows[:, : whole * size].unflatten(1, (whole, size)).sub_(by_row[:, :whole, None])
    rows[:, whole * size :].sub_(by_row[:, whole:])
    return y


def _fit(groups: Tensor, last: int) -> tuple[Tensor, Tensor]:
    """Returns scales and minima, not negative, of s k - m, (groups, 1) each.

    Codes of several ranges are followed by a regression with the weights mean |x| + |x|, as in
    llama.cpp's `make_qkx2_quants`.
    """
    low = groups.amin(-1, keepdim=True).clamp(max=0)
    spread = groups.amax(-1, keepdim=True) - low
    spread = spread.clamp(min=TINY_GROUP)
    weights = groups.square().mean(-1, keepdim=True).sqrt() + groups.abs() + TINY_GROUP
    total, total_x = (x.sum(-1, keepdim=True) for x in (weights, weights * groups))
    best, minimum = spread / last, low
    least = torch.full_like(low, torch.inf)
    for step in range(-1, FITS):
        codes = (groups - low) / spread * (last if step < 0 else last + FIT_START + step * FIT_STEP)
        codes = codes.round_().clamp_(0, last)
        scale, offset = spread / last, low
        if step >= 0:
            k, square, product = (
                (weights * x).sum(-1, keepdim=True) for x in (codes, codes * codes, codes * groups)
            )
            determinant = total * square - k * k
            scale = (total * product - total_x * k) / determinant
            offset = (square * total_x - k * product) / determinant
            scale = torch.where(offset > 0, product / square, scale)
            offset = offset.clamp(max=0)
        error = (weights * (scale * codes + offset - groups).square()).sum(-1, keepdim=True)
        is_better = (error < least) & (scale > 0)
        best, minimum = torch.where(is_better, scale, best), torch.where(is_better, offset, minimum)
        least = torch.where(is_better, error, least)
    return best.masked_fill(~groups.any(-1, keepdim=True), 0.0), -minimum


def _divisor(factors: Tensor) -> Tensor:
    """Returns factors as divisors, by which every number becomes 0 if a factor is 0."""
    return factors.double().masked_fill(factors == 0, torch.inf)


def _super_blocks(x: Tensor) -> Sequence[Tensor]:
    """Returns chunks of super-blocks, padded with zeros, (supers, 256) each."""
    blocks = Blocks((SUPER,)).split(x.detach()).reshape(-1, SUPER if x.numel() else 1)
    blocks = F.pad(blocks, (0, SUPER - blocks.size(1)))
    return chunks(blocks, SUPER)


def _joined(parts: Sequence[Tensor], x: Tensor) -> Tensor:
    """Joins super-blocks to the shape of a tensor, without their padding."""
    if not x.numel():
        return x.double()
    blocks = Blocks((SUPER,))
    return blocks.join(torch.cat(list(parts)).view(blocks.split(x).shape), x.shape)


def _in_row(by_super: Tensor, shape: Sequence[int], group: int) -> Tensor:
    """Returns one number per group, without those of the padding, one-dimensional."""
    if not by_super.numel():
        return by_super.view(-1)
    columns = shape[-1] if shape else 1
    count = -(-columns // group)
    supers = -(-columns // SUPER)
    return by_super.reshape(-1, supers * (SUPER // group))[:, :count].reshape(-1)
