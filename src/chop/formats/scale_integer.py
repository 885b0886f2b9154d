"""`scale_integer`: integers with a float scale per tensor, channel, row or group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from chop.config import Range
from chop.formats.elements import Fixed
from chop.formats.groups import Blocks, Groups, Whole
from chop.formats.lsq import LearnableFormat, check_scales
from chop.formats.scaled import ScaledFormat
from chop.formats.scaling import ConstantScale, FloatScale, Scaling
from chop.formats.statistic import Statistic


@dataclass(frozen=True)
class ScaleInteger(ScaledFormat, LearnableFormat):
    """Symmetric integers times a float scale s that follows the data.

    Values: s k, |k| < 2^(width-1). The scale is s = float32(amax/(2^(width-1) - 1)), or 2^-23 in a
    group of zeros. amax is the largest finite magnitude of the group. Unsigned: 0 <= k < 2^width,
    and s = float32(amax/(2^width - 1)). Not symmetric: k = -2^(width-1) is added, for static
    scales.
    Rounding: x/s is rounded to nearest, ties to even.
    Saturation: infinities, and values beyond the quantile, become the nearest end.
    Special values: zero is always +0. NaN stays NaN in `round` and is encoded as 0.

    Attributes:
        width: bits per element, 2 to 32.
        is_signed: False for k >= 0.
        quantile: share of magnitudes, in (0, 1], that s covers; 1 covers all.
        granularity: elements that share a scale: the `tensor`; a `channel`, one index of the first
            axis; a `row` of the last axis; a `group` of `group_size` along it.
        group_size: elements of a `group`.
        scales: static s of each group, or one for all.
        is_symmetric: False adds the lowest k of two's complement.

    Learning, for one scale per tensor or channel: s starts at 2 mean |x| / sqrt(Q), Q the largest
    k. Within the range of k, dy/dx = 1 and dy/ds = k - x/s; beyond it, 0 and k.

    Example:
        >>> import torch
        >>> ScaleInteger(4).round(torch.tensor([7.0, -3.4, 0.6]))
        tensor([ 7., -3.,  1.])

    Source: the symmetric scheme of Krishnamoorthi 2018, arXiv:1806.08342, section 2.2; the
    definition of `torch.fake_quantize_per_channel_affine` with zero points 0. Learning: Esser et
    al. 2020 (LSQ), arXiv:1902.08153, equations 3 and 5.
    """

    name: ClassVar[str] = "scale_integer"
    search_space: ClassVar[dict[str, Sequence[Any]]] = {
        "width": (4, 6, 8),
        "granularity": ("tensor", "channel"),
    }

    width: Annotated[int, Range(2, 32, "bits")]
    is_signed: bool = True
    quantile: Annotated[float, Range(most=1, above=0)] = 1.0
    granularity: Literal["tensor", "channel", "row", "group"] = "tensor"
    group_size: Annotated[int, Range(1, 2**20 - 1, "elements")] = 128
    scales: tuple[float, ...] | None = None
    is_symmetric: bool = True

    def validate(self) -> None:
        """Raises ConfigError if scales are not finite."""
        object.__setattr__(self, "scales", check_scales(self.scales, "scale_integer.scales"))

    @property
    def element(self) -> Fixed:
        """Integers."""
        code: Literal["twos_complement", "unsigned"]
        code = "twos_complement" if self.is_signed else "unsigned"
        return Fixed(self.width, 0, code, is_symmetric=self.is_symmetric)

    @property
    def groups(self) -> Groups:
        """Elements that share a scale."""
        if self.granularity == "group":
            return Blocks((self.group_size,))
        return Whole(self.granularity)

    @property
    def scaling(self) -> Scaling:
        """Float32 that maps the covered magnitudes to the integers, or a static scale."""
        if self.scales is not None:
            return ConstantScale(self.scales)
        covered = Statistic("largest", self.quantile, self.is_signed)
        return FloatScale(covered, self.element.largest_code, is_positive=True)
