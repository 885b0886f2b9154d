"""Number format `int_group`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from chop.config import Range
from chop.formats import NumberFormat
from chop.formats.elements import Fixed
from chop.formats.groups import Blocks
from chop.formats.layout import Layout
from chop.formats.scaling import FloatScale
from chop.formats.statistic import LARGEST


@dataclass(frozen=True)
class IntGroup(NumberFormat):
    """Integers times a float32 scale for each group of a row.

    Values: s k, |k| < 2^(width-1), s = amax/(2^(width-1) - 1) of the group.
    Rounding: to nearest, ties to even. Saturation: none, the largest magnitude has a code.
    Special values: a group with a NaN or an infinity is NaN altogether.

    Attributes:
        width: bits per element, 2 to 16.
        group_size: elements of a group, at least 2.

    Source: symmetric integer quantization, Jacob et al. 2018, arXiv:1712.05877, section 2.1.
    """

    name: ClassVar[str] = "int_group"
    search_space: ClassVar[dict[str, Sequence[Any]]] = {"width": (4, 8), "group_size": (32, 128)}

    width: Annotated[int, Range(2, 16, "bits")] = 4
    group_size: Annotated[int, Range(2, 65536, "elements")] = 32

    def layout(self) -> Layout:
        """Integers, groups along the last axis, a float32 scale for each."""
        element = Fixed(self.width, 0, "twos_complement")
        return Layout(element, Blocks((self.group_size,)), FloatScale(LARGEST, element.largest))
