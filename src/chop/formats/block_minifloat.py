"""`block_minifloat`: minifloats with a shared exponent bias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from chop.config import Range
from chop.formats.base import clamped
from chop.formats.elements import Minifloat
from chop.formats.float_format import check_float_widths, nearest_float_widths
from chop.formats.scaled import BlockFormat
from chop.formats.scaling import SharedExponent

MAX_EXPONENT_WIDTH = 7
MAX_BIAS_WIDTH = 8


@dataclass(frozen=True)
class BlockMinifloat(BlockFormat):
    """Minifloats with an exponent bias b per block. Every code is a finite number.

    Values: as in `minifloat_ieee`, variant `finite`, with the bias b = 2^exponent_width - 1 -
    floor(log2 amax) per block. b is a signed integer, clipped to its width. amax is the largest
    finite magnitude of the block, which therefore lies in the top binade.
    Rounding: to nearest, ties to even.
    Saturation: larger values, including infinities, become the largest value.
    Special values: -0 is preserved. NaN stays NaN in `round` and is encoded as 0.

    Attributes:
        width: bits per element, 3 to 32.
        exponent_width: bits of the exponent, 1 to 7, leaving a fraction of at least one bit.
        exponent_bias_width: bits of the shared bias, 1 to 8.

    Example:
        >>> import torch
        >>> BlockMinifloat(4, 2, 8, block_size=2).round(torch.tensor([0.02, 0.011, 7.0, 0.02]))
        tensor([0.0234, 0.0117, 6.0000, 0.0000])

    Source: Fox et al. 2021, "A Block Minifloat Representation for Training Deep Neural
    Networks", ICLR, section 3.
    """

    name: ClassVar[str] = "block_minifloat"
    search_space: ClassVar[dict[str, Sequence[Any]]] = {
        "width": (4, 6, 8),
        "exponent_width": (2, 3, 4),
        "block_size": (16, 32),
    }

    width: int
    exponent_width: Annotated[int, Range(1, MAX_EXPONENT_WIDTH, "bits")]
    exponent_bias_width: Annotated[int, Range(1, MAX_BIAS_WIDTH, "bits")] = 8

    @classmethod
    def nearest_valid(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Limits the exponent to the widest that fits, and the bias to 8 bits."""
        exponents = clamped(nearest_float_widths(fields), "exponent_width", MAX_EXPONENT_WIDTH)
        return clamped(exponents, "exponent_bias_width", MAX_BIAS_WIDTH)

    def validate_element(self) -> None:
        """Raises ConfigError if the width leaves too little room for the exponent."""
        check_float_widths(self.name, self.width, self.exponent_width)

    @property
    def element(self) -> Minifloat:
        """Minifloats with bias 0."""
        return Minifloat(
            self.exponent_width, self.width - self.exponent_width - 1, 0, variant="finite"
        )

    @property
    def scaling(self) -> SharedExponent:
        """2^-b, stored as 2^(exponent_bias_width-1) - 1 - b."""
        lowest = 1 - 2 ** (self.exponent_bias_width - 1)
        offset = 1 - 2**self.exponent_width
        return SharedExponent(lowest, self.exponent_bias_width, False, offset)
