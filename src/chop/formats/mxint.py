"""`mxint`: OCP's microscaling integers, MXINT8 and other widths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from chop.config import Range
from chop.formats.elements import Fixed
from chop.formats.scaled import BlockFormat, BlockSize
from chop.formats.scaling import SharedExponent

E8M0_LOWEST = -127
E8M0_WIDTH = 8
BLOCK_SIZE = 32


@dataclass(frozen=True)
class MXInt(BlockFormat):
    """MXINT: integers with one integer bit, times a power of two per block.

    Values: S q/2^(width-2), |q| < 2^(width-1). The block's scale is S = 2^floor(log2 amax), clipped
    to 2^-127 .. 2^127, or 2^-127 in a block of zeros. amax is the largest magnitude of the block.
    Rounding: q is rounded to nearest, ties to even.
    Saturation: larger values get the largest q of their sign.
    Special values: zero is always +0. A block with a NaN or an infinity becomes NaN.

    Attributes:
        width: bits per element, 2 to 32: 8 is MXINT8, other widths are an extension.

    Example:
        >>> import torch
        >>> MXInt(4, block_size=2).round(torch.tensor([1.0, 0.4, 1.99, 0.1]))
        tensor([1.0000, 0.5000, 1.7500, 0.0000])

    Source: OCP Microscaling Formats (MX) Specification 1.0, sections 5 and 6.
    """

    name: ClassVar[str] = "mxint"
    search_space: ClassVar[dict[str, Sequence[Any]]] = {
        "width": (4, 6, 8),
        "block_size": (16, 32, 64),
    }

    width: Annotated[int, Range(2, 32, "bits")] = 8
    block_size: BlockSize = field(default=BLOCK_SIZE, kw_only=True)

    @property
    def element(self) -> Fixed:
        """Integers with an implied 2^-(width-2)."""
        return Fixed(self.width, self.width - 2, "twos_complement")

    @property
    def scaling(self) -> SharedExponent:
        """The exponent of the largest magnitude, E8M0."""
        return SharedExponent(E8M0_LOWEST, E8M0_WIDTH, has_nan=True)
