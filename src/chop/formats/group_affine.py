"""`group_affine`: integers with a scale and a zero point per group, fitted by least squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from chop.config import Range
from chop.formats.affine_scale import AffineScale
from chop.formats.elements import Fixed
from chop.formats.groups import Blocks
from chop.formats.scaled import ScaledFormat


@dataclass(frozen=True)
class GroupAffine(ScaledFormat):
    """Asymmetric integers with a bfloat16 scale and a zero point per group of a row.

    Values: s (k - z), 0 <= k < 2^width. The scale s > 0 is a bfloat16. The zero point z is a
    multiple of 2^(width-8) in [0, 2^width - 1]. It is an integer in groups that contain a zero,
    which is then exact, and in groups without a positive value.
    Fitting: the grid with the smallest sum of squared errors is chosen by alternating fits, which
    round the values to codes k and then compute s and z by regression. The minimum of the group's
    values and 0 has the code 0. The maximum has the last code, the one before, or 2^(width-1); up
    to 4 bits, any code from 2^(width-1) on. Storage is width + 24/group_size bits per element.
    Fitting takes about four times as long as the search of `group_integer`, so the format is
    intended for weights.
    Rounding: x/s + z is rounded to nearest, ties to even. Dtypes narrower than float32 round the
    result once more. Rounding a tensor twice can therefore change some groups again.
    Saturation: infinities, and values that the fit clips, become the nearest end.
    Special values: NaN stays NaN in `round` and is encoded as the lowest value. Groups of values
    below 2^(width-127) may become zeros.

    Attributes:
        width: bits per element, 2 to 8.
        group_size: elements of a group along the last axis; the last group of a row may be shorter.

    Example:
        >>> import torch
        >>> GroupAffine(2, group_size=4).round(torch.tensor([-2.0, 0.0, 2.1, 3.9]))
        tensor([-1.9844,  0.0000,  1.9844,  3.9688])

    Source: affine quantization with zero points: Jacob et al. 2017, arXiv:1712.05877, section 2.1,
    equation 1.
    """

    name: ClassVar[str] = "group_affine"
    search_space: ClassVar[dict[str, Sequence[Any]]] = {
        "width": (2, 3, 4),
        "group_size": (32, 64, 128),
    }

    width: Annotated[int, Range(2, 8, "bits")] = 4
    group_size: Annotated[int, Range(1, 2**20 - 1, "elements")] = 64

    @property
    def element(self) -> Fixed:
        """Unsigned integers."""
        return Fixed(self.width, 0, "unsigned")

    @property
    def groups(self) -> Blocks:
        """Groups along the last axis."""
        return Blocks((self.group_size,))

    @property
    def scaling(self) -> AffineScale:
        """Bfloat16 scale and zero point per group."""
        return AffineScale(self.width)
