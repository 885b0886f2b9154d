"""`block_fp`: block floating point (MSFP), integers with a shared exponent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from chop.config import Range
from chop.formats.base import clamped
from chop.formats.elements import Fixed
from chop.formats.scaled import BlockFormat
from chop.formats.scaling import SharedExponent

MAX_EXPONENT_WIDTH = 8


@dataclass(frozen=True)
class BlockFP(BlockFormat):
    """Block floating point: signed magnitudes times a power of two per block.

    Values: s 2^E k/2^m, with the sign s, 0 <= k < 2^m and m = `width` - 1. The block's exponent is
    E = floor(log2 amax) + 1, clipped to -bias .. 2^exponent_width - 1 - bias. amax is the largest
    finite magnitude of the block.
    Rounding: k is rounded to nearest, ties to even.
    Saturation: larger values, including infinities, get the largest k, 2^m - 1.
    Special values: -0 is preserved. NaN stays NaN in `round` and is encoded as 0.

    Attributes:
        width: bits per element, 2 to 32.
        exponent_width: bits of the shared exponent, 1 to 8.
        exponent_bias: None for 2^(exponent_width-1) - 1.

    Example:
        >>> import torch
        >>> BlockFP(4, 8, block_size=2).round(torch.tensor([1.0, 0.3, 100.0, 0.3]))
        tensor([ 1.0000,  0.2500, 96.0000,  0.0000])

    Source: Darvish Rouhani et al. 2020, "Pushing the Limits of Narrow Precision Inferencing at
    Cloud Scale with Microsoft Floating Point", section 2.
    """

    name: ClassVar[str] = "block_fp"
    search_space: ClassVar[dict[str, Sequence[Any]]] = {
        "width": (4, 6, 8),
        "block_size": (16, 32),
    }

    width: Annotated[int, Range(2, 32, "bits")]
    exponent_width: Annotated[int, Range(1, MAX_EXPONENT_WIDTH, "bits")] = 8
    exponent_bias: Annotated[int | None, Range(-256, 256)] = None

    @classmethod
    def nearest_valid(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Limits exponents to 8 bits, which with their bias cover the range of float32."""
        taken = clamped(fields, "exponent_width", MAX_EXPONENT_WIDTH)
        if taken.get("exponent_width") == fields.get("exponent_width"):
            return taken
        return clamped(taken, "exponent_bias", 2 ** (MAX_EXPONENT_WIDTH - 1) - 1)

    @property
    def element(self) -> Fixed:
        """Fractions below 1."""
        return Fixed(self.width, self.width - 1, "sign_magnitude")

    @property
    def scaling(self) -> SharedExponent:
        """Power of two above the largest magnitude."""
        bias = self.exponent_bias
        bias = 2 ** (self.exponent_width - 1) - 1 if bias is None else bias
        return SharedExponent(-bias, self.exponent_width, has_nan=False, offset=1)
