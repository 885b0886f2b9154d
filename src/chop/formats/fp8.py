"""`fp8`: OCP's 8-bit floats with a float scale per tensor, channel, row, group or block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from chop.config import Range
from chop.formats.elements import Minifloat, default_variant
from chop.formats.groups import Blocks, Groups, Whole
from chop.formats.lsq import LearnableFormat, check_scales
from chop.formats.scaled import ScaledFormat
from chop.formats.scaling import ConstantScale, FloatScale, Scaling
from chop.formats.statistic import LARGEST

WIDTH = 8


@dataclass(frozen=True)
class FP8(ScaledFormat, LearnableFormat):
    """8-bit floats, e4m3 or e5m2, times a scale s that follows the data (FP8 inference).

    Values: s v, where v is a number of e4m3 (at most 448) or e5m2 (at most 57344). The scale is s =
    float32(amax/largest v), or 2^-23 in a group of zeros. amax is the largest finite magnitude of
    the group.
    Rounding: x/s is rounded to nearest, ties to even.
    Saturation: infinities, and values beyond the range of a static scale, become the largest value.
    Special values: -0 is preserved. NaN stays NaN and does not affect other values.

    Attributes:
        exponent_width: 4 for e4m3, which has no infinity and one NaN (E4M3FN); 5 for e5m2.
        granularity: elements that share a scale: the `tensor`; a `channel`, one index of the first
            axis; a `row` of the last axis, such as one token; a `group` of `group_size` along it;
            a `block` of that size along each of the last two axes.
        group_size: elements of a `group`, or along each side of a `block`.
        scales: static s of each group, or one for all.

    Example:
        >>> import torch
        >>> FP8(scales=(1.0,)).round(torch.tensor([1.97, 17.0, 500.0]))
        tensor([  2.,  16., 448.])

    Source: OCP 8-bit Floating Point Specification 1.0; scales: Micikevicius et al. 2022,
    arXiv:2209.05433, section 3; blocks of 128: DeepSeek-AI 2024, arXiv:2412.19437, section 3.3.
    """

    name: ClassVar[str] = "fp8"
    search_space: ClassVar[dict[str, Sequence[Any]]] = {
        "exponent_width": (4, 5),
        "granularity": ("tensor", "channel"),
    }

    exponent_width: Annotated[int, Range(4, 5, "bits")] = 4
    granularity: Literal["tensor", "channel", "row", "group", "block"] = "tensor"
    group_size: Annotated[int, Range(1, 2**20 - 1, "elements")] = 128
    scales: tuple[float, ...] | None = None

    def validate(self) -> None:
        """Raises ConfigError if scales are not finite."""
        object.__setattr__(self, "scales", check_scales(self.scales, "fp8.scales"))

    @property
    def element(self) -> Minifloat:
        """e4m3 or e5m2."""
        exponent_width = self.exponent_width
        bias = 2 ** (exponent_width - 1) - 1
        variant = default_variant(WIDTH, exponent_width)
        return Minifloat(exponent_width, WIDTH - 1 - exponent_width, bias, variant)

    @property
    def groups(self) -> Groups:
        """Elements that share a scale."""
        if self.granularity == "group":
            return Blocks((self.group_size,))
        if self.granularity == "block":
            return Blocks((self.group_size, self.group_size))
        return Whole(self.granularity)

    @property
    def scaling(self) -> Scaling:
        """Float32 that maps the largest magnitude to the largest element, or a static scale."""
        if self.scales is not None:
            return ConstantScale(self.scales)
        return FloatScale(LARGEST, self.element.largest, is_positive=True)
