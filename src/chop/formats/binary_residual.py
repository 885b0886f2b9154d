"""`binary_residual`: a sum of scaled signs, each binarizing the residual of the previous ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from chop.config import Range
from chop.errors import ConfigError
from chop.formats.elements import Sign
from chop.formats.layout import Layout
from chop.formats.lsq import LearnableFormat, check_scales
from chop.formats.scaling import ConstantScale, FloatScale
from chop.formats.statistic import MEAN

MAX_LEVELS = 8


@dataclass(frozen=True)
class BinaryResidual(LearnableFormat):
    """Residual binarization: the sum of L binary levels, each with a scale.

    Values: the sum over l of scale_l s_l, with s_l in {-1, +1}, or {0, 1} if `bipolar` is False.
    Rounding: r_0 = x. s_l is the sign of r_l, +1 for zeros, and r_(l+1) = r_l - scale_l s_l. With
    `stochastic`, the upper value is drawn with probability clip((r_l/scale_l + 1)/2, 0, 1) from
    torch's global generator. scale_l is float32(mean |r_l|) of the whole tensor, or static.
    Saturation: magnitudes above the sum of the scales become that sum.
    Special values: NaN stays NaN in `round` and is encoded with the lower bits. Only finite
    magnitudes enter the means.

    Attributes:
        width: 1, the bits of a level.
        stochastic: draws values at random instead of taking the sign.
        bipolar: False for {0, 1}.
        residual_sign: False for one level, regardless of `levels`.
        levels: L, 1 to 8.
        scales: static factors of the L levels, or None to measure them.

    Learning: the factors start at their measured values; dy/dscale_l = s_l; dy/dx is 1, and 0
    beyond the sum of the factors.

    Example:
        >>> import torch
        >>> BinaryResidual(levels=2).round(torch.tensor([3.0, 1.0, -1.0, -3.0]))
        tensor([ 3.,  1., -1., -3.])

    Source: Ghasemzadeh, Samragh and Koushanfar 2018 (ReBNet), arXiv:1711.01243, section III-A.
    """

    name: ClassVar[str] = "binary_residual"
    module_keys: ClassVar[dict[str, str | None]] = {"binary_training": None}
    search_space: ClassVar[dict[str, Sequence[Any]]] = {"levels": (1, 2, 3)}

    width: Annotated[int, Range(1, 1, "bit")] = 1
    stochastic: bool = False
    bipolar: bool = True
    residual_sign: bool = True
    levels: Annotated[int, Range(1, MAX_LEVELS, "levels")] = 2
    scales: tuple[float, ...] | None = None

    @classmethod
    def ignores(cls, name: str, value: Any) -> bool:
        """Ignores widths other than 1, the bits of a level, and the scale, which is measured."""
        return name in ("frac_width", "scaling_factor") or (name == "width" and value != 1)

    def validate(self) -> None:
        """Raises ConfigError unless the width is 1 and there are L scales."""
        object.__setattr__(self, "scales", check_scales(self.scales, "binary_residual.scales"))
        if self.scales is not None and len(self.scales) != self._depth:
            raise ConfigError(
                f"binary_residual.scales: expected {self._depth}, one for each level, got "
                f"{len(self.scales)}."
            )

    @property
    def is_deterministic(self) -> bool:
        """False if values are drawn at random."""
        return not self.stochastic

    @property
    def _depth(self) -> int:
        return self.levels if self.residual_sign else 1

    def layout(self) -> Layout:
        """Returns levels of signs, each with one factor for the whole tensor."""
        scaling = FloatScale(MEAN) if self.scales is None else ConstantScale(self.scales)
        return Layout(Sign(self.bipolar, self.stochastic), scaling=scaling, levels=self._depth)
