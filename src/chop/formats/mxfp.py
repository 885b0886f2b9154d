"""`mxfp`: OCP's microscaling floats, MXFP8, MXFP6 and MXFP4."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from chop.config import Range
from chop.formats.elements import Minifloat, default_variant
from chop.formats.float_format import check_float_widths
from chop.formats.mxint import BLOCK_SIZE, E8M0_LOWEST, E8M0_WIDTH
from chop.formats.scaled import BlockFormat, BlockSize
from chop.formats.scaling import SharedExponent

STANDARD = {4: 2, 6: 2}
"""Exponent bits of the standard elements by width; 4 for other widths."""


@dataclass(frozen=True)
class MXFP(BlockFormat):
    """MXFP: minifloats times a power of two per block.

    Values: S times a number of `minifloat_ieee` with its default bias and variant: e4m3 and e5m2 in
    8 bits, e3m2 and e2m3 in 6, e2m1 in 4. The block's scale is S = 2^(floor(log2 amax) - emax),
    clipped to 2^-127 .. 2^127. amax is the largest magnitude of the block, and emax the exponent of
    the largest element.
    Rounding: to nearest, ties to even.
    Saturation: larger values become S times the largest element.
    Special values: -0 is preserved. A block with a NaN or an infinity becomes NaN.

    Attributes:
        width: bits per element, 3 to 16.
        exponent_width: bits of an element's exponent, leaving a fraction of at least one bit. None
            takes the standard's element: e2m1 in 4 bits, e2m3 in 6 bits and e4m3 in 8 bits. In 6
            bits, e2m3 is 5 dB more exact than e3m2 (exponent_width=3) on normal data.
        scale_mode: rule for S. `floor` is OCP's. `ceil` takes the smallest S that saturates
            nothing, 2^ceil(log2(amax/largest)). `even` first rounds amax to the elements'
            fraction, so that amax just below a power of two does not saturate.

    Example:
        >>> import torch
        >>> MXFP(4, 2, block_size=2).round(torch.tensor([1.0, 0.4, 1.99, 0.1]))
        tensor([1.0000, 0.3750, 1.5000, 0.1250])

    Source: OCP Microscaling Formats (MX) Specification 1.0, sections 5 and 6; `ceil`: Mishra et
    al. 2025, arXiv:2506.08027; `even`: Rouhani et al. 2023, arXiv:2310.10537.
    """

    name: ClassVar[str] = "mxfp"
    search_space: ClassVar[dict[str, Sequence[Any]]] = {
        "width": (4, 6, 8),
        "exponent_width": (2, 3, 4),
        "block_size": (16, 32, 64),
    }

    width: Annotated[int, Range(3, 16, "bits")] = 8
    exponent_width: int | None = None
    scale_mode: Literal["floor", "ceil", "even"] = "floor"
    block_size: BlockSize = field(default=BLOCK_SIZE, kw_only=True)

    def validate_element(self) -> None:
        """Raises ConfigError if the width leaves too little room for the exponent."""
        check_float_widths("mxfp", self.width, self._exponent_width)
        object.__setattr__(self, "exponent_width", self._exponent_width)

    def get_default(self, field: str) -> Any:
        """Returns the default of a field; `exponent_width` depends on the width."""
        if field == "exponent_width":
            return STANDARD.get(self.width, 4)
        return super().get_default(field)

    @property
    def _exponent_width(self) -> int:
        given = self.exponent_width
        return self.get_default("exponent_width") if given is None else given

    @property
    def element(self) -> Minifloat:
        """Minifloats."""
        width, exponent_width = self.width, self._exponent_width
        variant = default_variant(width, exponent_width)
        bias = 2 ** (exponent_width - 1) - 1
        return Minifloat(exponent_width, width - exponent_width - 1, bias, variant)

    @property
    def scaling(self) -> SharedExponent:
        """E8M0."""
        element = self.element
        increment_threshold = {
            "floor": 2.0,
            # Any magnitude whose significand is above that of the largest element.
            "ceil": math.nextafter(element.largest / 2.0**element.largest_exponent, 2.0),
            # From the middle between the largest fraction and 2, a tie that goes to the even 2.
            "even": 2.0 - 2.0 ** -(element.mantissa_width + 1),
        }[self.scale_mode]
        offset = -element.largest_exponent
        return SharedExponent(E8M0_LOWEST, E8M0_WIDTH, True, offset, increment_threshold)
