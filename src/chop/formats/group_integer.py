"""`group_integer`: integers with a bfloat16 scale per group, found by a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from chop.config import Range
from chop.formats.elements import Fixed
from chop.formats.groups import Blocks
from chop.formats.scaled import ScaledFormat
from chop.formats.searched_scale import SearchedScale


@dataclass(frozen=True)
class GroupInteger(ScaledFormat):
    """Two's-complement integers times a bfloat16 scale of either sign per group of a row.

    Values: s k, -2^(width-1) <= k < 2^(width-1). The scale s is a bfloat16 of either sign, or 2^-23
    in a group of zeros.
    Fitting: s is the candidate with the smallest sum of squared errors in the group. For 2 bits,
    half the square of the summed errors is added. The candidates are -x_max/c, rounded to bfloat16,
    where x_max is the value of largest magnitude. Their sign makes the code of x_max negative,
    because there is one more negative code than positive ones. c takes 17 evenly spaced values from
    1/2 to 3/2 of 2^(width-1). From 6 bits on, c takes the integers from 1/2 to 1 of it. Storage is
    width + 16/group_size bits per element. The search takes time, so the format is intended for
    weights.
    Rounding: x/s is rounded to nearest, ties to even.
    Saturation: infinities, and values that the search clips, become the nearest end.
    Special values: NaN stays NaN in `round` and is encoded as 0.

    Attributes:
        width: bits per element, 2 to 8.
        group_size: elements of a group along the last axis; the last group of a row may be shorter.

    Example:
        >>> import torch
        >>> GroupInteger(3, group_size=4).round(torch.tensor([4.0, -3.0, 1.1, 2.2]))
        tensor([ 4., -3.,  1.,  2.])

    Source: the scale with the least squared error: Banner et al. 2019, arXiv:1810.05723, section
    2; by grid search: Choukroun et al. 2019, arXiv:1902.06822, section 4. Accumulated errors:
    Nagel et al. 2019, arXiv:1906.04721, section 4.2.
    """

    name: ClassVar[str] = "group_integer"
    search_space: ClassVar[dict[str, Sequence[Any]]] = {
        "width": (2, 3, 4),
        "group_size": (16, 32, 64),
    }

    width: Annotated[int, Range(2, 8, "bits")] = 4
    group_size: Annotated[int, Range(1, 2**20 - 1, "elements")] = 32

    @property
    def element(self) -> Fixed:
        """Integers, including the lowest one of two's complement."""
        return Fixed(self.width, 0, "twos_complement", is_symmetric=False)

    @property
    def groups(self) -> Blocks:
        """Groups along the last axis."""
        return Blocks((self.group_size,))

    @property
    def scaling(self) -> SearchedScale:
        """Bfloat16 scale per group."""
        return SearchedScale(self.element.lowest_code)
