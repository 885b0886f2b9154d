"""Formats composed of parts in ways that no registered format is, each defined as users would.

Two of them have a grouping of their own, two a scaling of their own; the parts of the others are
known. They are registered only while a test asks for it: see `test_composed.py`.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from chop.formats import REGISTRY, NumberFormat
from chop.formats.elements import Fixed, Log2, Minifloat, Sign, Trit
from chop.formats.exponents import floor_log2
from chop.formats.groups import Blocks, BlockTiling, Groups, Whole
from chop.formats.layout import Layout
from chop.formats.packing import unpack_bits
from chop.formats.scaling import FloatScale, ScaledFloatScale, Scales, Scaling, SharedExponent
from chop.formats.statistic import LARGEST, Statistic

E4M3, E5M2, E3M2 = (
    Minifloat(4, 3, 7, "fn"),
    Minifloat(5, 2, 15, "ieee"),
    Minifloat(3, 2, 3, "finite"),
)
INT8, INT4 = Fixed(8, 0, "twos_complement"), Fixed(4, 0, "twos_complement")


@dataclass(frozen=True)
class RowE3M2(NumberFormat):
    """e3m2 times a float32 for each row."""

    name: ClassVar[str] = "row_e3m2"

    def layout(self):
        return Layout(E3M2, Whole("row"), FloatScale(LARGEST, E3M2.largest, is_positive=True))


@dataclass(frozen=True)
class TensorE3M2(NumberFormat):
    """e3m2 times a float32 for the tensor."""

    name: ClassVar[str] = "tensor_e3m2"

    def layout(self):
        return Layout(E3M2, Whole("tensor"), FloatScale(LARGEST, E3M2.largest))


@dataclass(frozen=True)
class ChannelFixed(NumberFormat):
    """8-bit fixed point times a power of two for each channel."""

    name: ClassVar[str] = "channel_fixed"

    def layout(self):
        scaling = SharedExponent(-127, 8, offset=1)
        return Layout(Fixed(8, 7, "twos_complement"), Whole("channel"), scaling)


@dataclass(frozen=True)
class FlooredBlocks(NumberFormat):
    """Floored two's complement times a power of two for each 16 of a row.

    Attributes:
        width: bits per element.
    """

    name: ClassVar[str] = "floored_blocks"
    search_space: ClassVar = {"width": (6, 8)}
    width: int = 8

    def layout(self):
        element = Fixed(self.width, self.width - 1, "twos_complement", False, "floor")
        return Layout(element, Blocks((16,)), SharedExponent(-127, 8, offset=1))


@dataclass(frozen=True)
class GroupLog(NumberFormat):
    """Powers of two times a float32 for each 32 of a row."""

    name: ClassVar[str] = "group_log"

    def layout(self):
        scaling = FloatScale(LARGEST, 1.0, is_positive=True)
        return Layout(Log2(4, 7, "linear", True), Blocks((32,)), scaling)


@dataclass(frozen=True)
class TileSign(NumberFormat):
    """Signs times a power of two for each 4 x 4."""

    name: ClassVar[str] = "tile_sign"

    def layout(self):
        return Layout(Sign(True, False), Blocks((4, 4)), SharedExponent(-127, 8))


@dataclass(frozen=True)
class TileUInt8(NumberFormat):
    """Unsigned integers times a float32 for each 4 x 8."""

    name: ClassVar[str] = "tile_uint8"

    def layout(self):
        scaling = FloatScale(Statistic(is_signed=False), 255.0, is_positive=True)
        return Layout(Fixed(8, 0, "unsigned"), Blocks((4, 8)), scaling)


@dataclass(frozen=True)
class TwoLevelInt4(NumberFormat):
    """4-bit integers times an e4m3 number for each 16 of a row and a float32 for the tensor."""

    name: ClassVar[str] = "two_level_int4"

    def layout(self):
        return Layout(INT4, Blocks((16,)), ScaledFloatScale(E4M3, INT4.largest))


@dataclass(frozen=True)
class TileLog(NumberFormat):
    """Powers of two times one for each 2 x 16, with a NaN."""

    name: ClassVar[str] = "tile_log"

    def layout(self):
        return Layout(Log2(4, 7, "linear", True), Blocks((2, 16)), SharedExponent(-127, 8, True))


@dataclass(frozen=True)
class OpenE5M2(NumberFormat):
    """e5m2 times a power of two for each 16 of a row; what a dtype cannot hold is infinite."""

    name: ClassVar[str] = "open_e5m2"

    def layout(self):
        return Layout(E5M2, Blocks((16,)), SharedExponent(-127, 8, True), overflow="infinity")


@dataclass(frozen=True)
class RowTrit(NumberFormat):
    """Ternary digits times a power of two for each row."""

    name: ClassVar[str] = "row_trit"

    def layout(self):
        return Layout(Trit(0.5), Whole("row"), SharedExponent(-127, 8))


@dataclass(frozen=True)
class TwoLevelE3M2(NumberFormat):
    """e3m2 times an e5m2 number for each 32 of a row and a float32 for the tensor."""

    name: ClassVar[str] = "two_level_e3m2"

    def layout(self):
        return Layout(E3M2, Blocks((32,)), ScaledFloatScale(E5M2, E3M2.largest))


@dataclass(frozen=True)
class Halves(Groups):
    """Both halves of a row, the first one longer by one if the row is odd."""

    nominal_size: float = float("inf")

    def _blocks(self, shape):
        return Blocks((-(-shape[-1] // 2) if shape and shape[-1] else 1,))

    def split(self, x):
        return self._blocks(x.shape).split(x)

    def join(self, groups, shape):
        return self._blocks(shape).join(groups, shape)

    def count(self, shape):
        return self._blocks(shape).count(shape)

    def tiling(self, shape) -> BlockTiling | None:
        return self._blocks(shape).tiling(shape)

    def is_row_separable(self, rank):
        return True


@dataclass(frozen=True)
class Comb(Groups):
    """Every `stride`-th element of a row."""

    stride: int
    nominal_size: float = float("inf")

    def split(self, x):
        if x.numel() == 0:
            return x.reshape(0, 1)
        x = x.reshape(1) if x.ndim == 0 else x
        return Blocks((self.stride,)).split(x).mT  # (..., stride, elements of each)

    def join(self, groups, shape):
        if groups.numel() == 0:
            return groups.reshape(shape)
        return Blocks((self.stride,)).join(
            groups.reshape(*groups.shape[:-2], self.stride, -1).mT, shape
        )

    def count(self, shape):
        rows = torch.Size(shape).numel() // shape[-1] if torch.Size(shape).numel() and shape else 1
        return self.stride * rows if torch.Size(shape).numel() else 0

    def tiling(self, shape) -> BlockTiling | None:
        return None  # it lies in no block

    def is_row_separable(self, rank):
        return True


@dataclass(frozen=True)
class PowerOfFour(SharedExponent):
    """Only even exponents: the least one above the largest magnitude."""

    def exponent(self, amax):
        return (floor_log2(amax) + 2) // 2 * 2


@dataclass(frozen=True)
class BFloat16Scale(Scaling):
    """bfloat16(amax / divisor), the smallest normal number at least."""

    divisor: float
    width: int = 16
    statistic: Statistic = LARGEST

    def scales(self, statistics, non_finite=None):
        tiny = torch.finfo(torch.bfloat16).tiny
        scale = (statistics / self.divisor).clamp(min=tiny).bfloat16()
        return Scales(scale.double(), scale.view(torch.int16).long())

    def restore(self, packed, count, tensor_scale):
        codes = unpack_bits(packed, 16, count).to(torch.int16)
        return codes.view(torch.bfloat16).double().view(-1, 1)


@dataclass(frozen=True)
class HalvesRadix4(NumberFormat):
    """Sign and magnitude times a power of four for each half of a row."""

    name: ClassVar[str] = "halves_radix4"

    def layout(self):
        return Layout(Fixed(6, 5, "sign_magnitude"), Halves(), PowerOfFour(-128, 8))


@dataclass(frozen=True)
class CombE4M3(NumberFormat):
    """e4m3 times a power of two for every fourth element of a row."""

    name: ClassVar[str] = "comb_e4m3"

    def layout(self):
        return Layout(E4M3, Comb(4), SharedExponent(-127, 8, offset=-E4M3.largest_exponent))


@dataclass(frozen=True)
class RowInt8BFloat16(NumberFormat):
    """8-bit integers times a bfloat16 for each row."""

    name: ClassVar[str] = "row_int8_bfloat16"

    def layout(self):
        return Layout(INT8, Whole("row"), BFloat16Scale(INT8.largest))


KINDS = [
    *(RowE3M2, TensorE3M2, ChannelFixed, FlooredBlocks, GroupLog, TileSign, TileUInt8),
    *(
        TwoLevelInt4,
        TileLog,
        OpenE5M2,
        RowTrit,
        TwoLevelE3M2,
        HalvesRadix4,
        CombE4M3,
        RowInt8BFloat16,
    ),
]
SCATTERED = (TileSign, TileUInt8, TileLog, CombE4M3)
"""Groups cross rows, or do not lie in one piece."""
DECODED = (*SCATTERED, OpenE5M2)
"""Weights are decoded before they are multiplied: the loops also bound what is to overflow."""
for _kind in KINDS:  # known while these tests run, and to no other
    del REGISTRY[_kind.name]
