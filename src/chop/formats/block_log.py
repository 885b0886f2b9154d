"""`block_log`: powers of two with a shared exponent bias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from chop.config import Range
from chop.formats.base import clamped
from chop.formats.elements import Log2
from chop.formats.scaled import BlockFormat
from chop.formats.scaling import ABOVE_POWERS, SharedExponent

MAX_BIAS_WIDTH = 8


@dataclass(frozen=True)
class BlockLog(BlockFormat):
    """Signed powers of two with an exponent bias b per block.

    Values: as in `log`, with the bias b = 2^(width-1) - 1 - ceil(log2 amax) per block. b is a
    signed integer, clipped to its width. amax is the largest finite magnitude of the block.
    Rounding: log2 |x| is rounded to the nearest integer.
    Saturation: values beyond either end, including infinities, become the nearest end.
    Special values: zeros of either sign become +2^-b. NaN stays NaN in `round` and is encoded as
    the lowest code.

    Attributes:
        width: bits per element, 2 to 32.
        exponent_bias_width: bits of the shared bias, 1 to 8; None for 8.

    Example:
        >>> import torch
        >>> BlockLog(3, 8, block_size=2).round(torch.tensor([5.0, 0.1, -0.3, 0.3]))
        tensor([ 4.0000,  1.0000, -0.2500,  0.2500])

    Source: the logarithmic elements of Miyashita et al. 2016, arXiv:1603.01025, with the shared
    bias of Fox et al., ICLR 2021.
    """

    name: ClassVar[str] = "block_log"
    search_space: ClassVar[dict[str, Sequence[Any]]] = {
        "width": (4, 6, 8),
        "block_size": (16, 32),
    }

    width: Annotated[int, Range(2, 32, "bits")]
    exponent_bias_width: Annotated[int | None, Range(1, MAX_BIAS_WIDTH, "bits")] = None

    @classmethod
    def nearest_valid(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Limits the bias to 8 bits."""
        return clamped(fields, "exponent_bias_width", MAX_BIAS_WIDTH)

    @property
    def element(self) -> Log2:
        """Powers of two, at least 1."""
        return Log2(self.width, bias=0)

    @property
    def scaling(self) -> SharedExponent:
        """2^-b, stored as 2^(exponent_bias_width-1) - 1 - b."""
        width = self.exponent_bias_width or 8
        lowest, offset = 1 - 2 ** (width - 1), 1 - 2 ** (self.width - 1)
        return SharedExponent(lowest, width, False, offset, increment_threshold=ABOVE_POWERS)
