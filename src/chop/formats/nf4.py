"""`nf4`: the 4-bit tables of bitsandbytes and QLoRA, with nested scales by choice."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from chop.config import Range
from chop.formats import reference
from chop.formats.elements import LookupTable
from chop.formats.encoded import Encoded
from chop.formats.groups import Blocks
from chop.formats.scaled import ScaledFormat
from chop.formats.scaling import FloatScale, Scales, Scaling
from chop.formats.statistic import LARGEST

QUANTILES = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""Quantiles of a normal distribution by code, as float32 numbers."""
HALF_FLOATS = (
    *(0.0, 0.0052083334885537624, 0.6666666865348816, 1.0),
    *(0.3333333432674408, 0.5, 0.1666666716337204, 0.25),
)
"""Non-negative numbers of `fp4` by code; the codes above have their negatives, and a second 0."""
TABLES = {"nf4": QUANTILES, "fp4": (*HALF_FLOATS, *(0.0 - x for x in HALF_FLOATS))}
NESTED_GROUP = 256
"""Scales that share a scale of their own."""
NESTED_DECADES = 7
"""Decades of the table of nested scales."""
FLOAT_BYTES = 4
LARGEST_FLOAT = torch.finfo(torch.float32).max


@cache
def nested_table() -> tuple[float, ...]:
    """Returns the 256 float32 numbers of nested scales, in ascending order.

    Seven decades from 1e-6 to 1, each with twice as many numbers as the one below.

    Source: the dynamic map of Dettmers 2016, arXiv:1511.04561, section 2.4.
    """
    numbers = [0.0, 1.0]
    for decade in range(NESTED_DECADES):
        ends = torch.linspace(0.1, 1, 2**decade + 1, dtype=torch.float32, device="cpu")
        middles = 10.0 ** (decade + 1 - NESTED_DECADES) * ((ends[:-1] + ends[1:]) / 2)
        numbers += [*middles.tolist(), *(-middles).tolist()]
    return tuple(sorted(numbers))


@dataclass(frozen=True)
class NestedScale(Scaling):
    """Absmax scales in 8 bits: m + n t, with the mean m of a tensor's scales.

    n is the largest deviation from m among 256 scales, and t one of the numbers of `nested_table`.
    All steps are computed in float32. The stored bytes are the codes, then every n, then m.

    Attributes:
        width: bits of a scale's code.
    """

    width: int = 8
    statistic = LARGEST
    spans_tensor = True

    def scales(self, statistics: Tensor, non_finite: Tensor | None = None) -> Scales:
        """Returns the scales that `restore` reads from their codes."""
        largest = statistics.clamp(max=LARGEST_FLOAT).float()
        if largest.is_meta or not largest.numel():
            return Scales(largest.double(), largest)
        restored = self.restore(self.pack(largest), largest.numel(), None)
        return Scales(restored.view(statistics.shape), largest)

    def pack(self, codes: Tensor) -> Tensor:
        """Packs largest magnitudes, float32, to bytes."""
        flat = codes.reshape(-1).float()
        if not flat.numel():
            return flat.new_empty(0, dtype=torch.uint8)
        mean = flat.mean()  # in float32 like bitsandbytes, unless the sum overflows
        mean = torch.where(mean.isfinite(), mean, flat.double().mean().float())
        deviations = flat - mean
        padded = torch.nn.functional.pad(deviations, (0, -flat.numel() % NESTED_GROUP))
        rows = padded.view(-1, NESTED_GROUP)
        nested = rows.abs().amax(1)
        shares = rows * (1 / nested.masked_fill(nested == 0, 1.0))[:, None]
        nested_codes = LookupTable(nested_table(), self.width).codes(shares.double())
        return pack_nested(nested_codes.view(-1)[: flat.numel()], nested, mean)

    def restore(self, packed: Tensor, count: int, tensor_scale: Tensor | None) -> Tensor:
        """Returns the scales of packed bytes, float64 (count, 1), each a float32 number."""
        if not count:
            return packed.new_empty((0, 1), dtype=torch.float64)
        table = torch.tensor(nested_table(), dtype=torch.float32, device=packed.device)
        floats = packed[count:].clone().view(torch.float32)
        nested = floats[:-1].repeat_interleave(NESTED_GROUP)[:count]
        scales = table[packed[:count].int()] * nested + floats[-1]
        return scales.clamp(max=LARGEST_FLOAT).double().view(-1, 1)


def pack_nested(codes: Tensor, nested: Tensor, mean: Tensor) -> Tensor:
    """Returns the bytes of `NestedScale`.

    Args:
        codes: (scales,), integers from 0 to 255.
        nested: float32 (ceil(scales / 256),), scales of the codes.
        mean: float32 scalar.
    """
    floats = torch.cat([nested.reshape(-1).float(), mean.reshape(1).float()])
    return torch.cat([codes.to(torch.uint8), floats.view(torch.uint8)])


def nested_bytes(count: int) -> int:
    """Returns the size of the bytes of `NestedScale` for a number of scales."""
    return count + FLOAT_BYTES * (-(-count // NESTED_GROUP) + 1)


@dataclass(frozen=True)
class NF4(ScaledFormat):
    """4-bit values from a lookup table (NF4, FP4), times the absmax of each group of a row.

    Values: s t. The scale is s = float32(amax), where amax is the largest magnitude of the group.
    t is a value of the table. `nf4` has 16 quantiles of a normal distribution from -1 to 1,
    including 0. `fp4` has 0, 1/192, 1/6, 1/4, 1/3, 1/2, 2/3 and 1 with either sign. With `nested`,
    s = m + n u in float32: m is the mean amax of the tensor, u one of 256 values from -1 to 1, and
    n the largest |amax - m| of 256 groups.
    Rounding: to nearest, ties to the lower value.
    Saturation: infinities and values beyond float32 become the largest value. With `nested`, so do
    values beyond a scale that was rounded down.
    Special values: zero is +0, or -0 if a nested scale is negative. NaN stays NaN in `round` and is
    encoded as 0.
    Storage: 4.5 bits per element in groups of 64, and 4.127 bits with `nested`.

    Rounding a tensor twice can change nested scales.

    Attributes:
        group_size: elements of a group along the last axis; the last group of a row may be shorter.
        nested: stores scales in 8 bits (double quantization) instead of float32.
        table: values: `nf4` or `fp4`.

    Example:
        >>> import torch
        >>> NF4(4).round(torch.tensor([1.0, -0.6, 0.1, 0.0]))
        tensor([ 1.0000, -0.5251,  0.0796,  0.0000])

    Source: Dettmers et al. 2023 (QLoRA), arXiv:2305.14314, section 3 and appendix E; the values
    equal those of bitsandbytes.
    """

    name: ClassVar[str] = "nf4"
    search_space: ClassVar[dict[str, Sequence[Any]]] = {"group_size": (32, 64, 128)}

    group_size: Annotated[int, Range(1, 2**20 - 1, "elements")] = 64
    nested: bool = False
    table: Literal["nf4", "fp4"] = "nf4"

    @property
    def is_nested(self) -> bool:  # type: ignore[override]
        """True with `nested`."""
        return self.nested

    @property
    def element(self) -> LookupTable:
        """Numbers of the table."""
        return LookupTable(TABLES[self.table])

    @property
    def groups(self) -> Blocks:
        """Groups along the last axis."""
        return Blocks((self.group_size,))

    @property
    def scaling(self) -> Scaling:
        """Largest magnitude of a group."""
        return NestedScale() if self.nested else FloatScale(LARGEST)

    def bits(self, shape: Sequence[int] = ()) -> float:
        """Returns the storage per element in bits; `()` for full groups of a large tensor."""
        width = reference.bits(self.layout(), shape)
        if not self.nested:
            return width
        if not shape:
            return width + 8 * FLOAT_BYTES / (NESTED_GROUP * self.group_size)
        count = self.groups.count(shape)
        return width + 8 * (nested_bytes(count) - count) / max(math.prod(shape), 1)

    def is_row_separable(self, shape: Sequence[int]) -> bool:
        """Returns False for nested scales, which rows share."""
        return not self.nested and super().is_row_separable(shape)

    def flattened(self, encoded: Encoded) -> tuple[NF4, Encoded, None] | None:
        """Returns the same codes with the nested scales as float32; see the base class."""
        if not self.nested or encoded.scales is None:
            return None
        plain = dataclasses.replace(self, nested=False)
        count = self.groups.count(encoded.shape)
        scales = self.scaling.restore(encoded.scales, count, None).float().view(-1)
        return plain, dataclasses.replace(encoded, scales=scales), None
