"""`binary`: one bit per element, with or without a scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from chop.config import Range
from chop.errors import ConfigError
from chop.formats.elements import Sign
from chop.formats.groups import Whole
from chop.formats.lsq import LearnableFormat, check_scales
from chop.formats.scaled import ScaledFormat
from chop.formats.scaling import ConstantScale, FloatScale, Scaling, Unscaled
from chop.formats.statistic import MEAN


@dataclass(frozen=True)
class Binary(ScaledFormat, LearnableFormat):
    """One bit per value: -1 or 1, optionally times a scale.

    Values: {-1, +1} times a scale, or {0, 1} times a scale if `bipolar` is False. The scale is 1,
    or the mean magnitude of each channel (index of the first axis). A vector is one channel.
    Rounding: x >= 0, including -0, becomes the upper value. With `stochastic` (stochastic
    rounding), the upper value is drawn with probability clip((x/scale + 1)/2, 0, 1) from torch's
    global generator, at every call and also in evaluation.
    Saturation: magnitudes above the scale become the scale.
    Special values: NaN stays NaN in `round` and is encoded as the lower value. Only finite
    magnitudes enter the mean.

    Attributes:
        width: 1.
        stochastic: draws values at random instead of taking the sign.
        bipolar: False for {0, 1}.
        scaling_factor: computes the scale from the data instead of using 1.
        scales: static scale of each channel, or one for all; requires `scaling_factor`.

    Learning, with `scaling_factor`: the scale starts at the mean magnitude; dy/dscale is the value
    without it; dy/dx is 1, and 0 beyond the scale.

    Example:
        >>> import torch
        >>> Binary(scaling_factor=True).round(torch.tensor([0.5, -1.5, 0.0]))
        tensor([ 0.6667, -0.6667,  0.6667])

    Source: Courbariaux, Bengio and David 2015 (BinaryConnect), arXiv:1511.00363, section 2;
    the scale: Rastegari et al. 2016 (XNOR-Net), arXiv:1603.05279, section 3.1.
    """

    name: ClassVar[str] = "binary"
    module_keys: ClassVar[dict[str, str | None]] = {"binary_training": "scaling_factor"}
    search_space: ClassVar[dict[str, Sequence[Any]]] = {"scaling_factor": (False, True)}

    width: Annotated[int, Range(1, 1, "bit")] = 1
    stochastic: bool = False
    bipolar: bool = True
    scaling_factor: bool = False
    scales: tuple[float, ...] | None = None

    @classmethod
    def ignores(cls, name: str, value: Any) -> bool:
        """Ignores widths other than 1, and numeric scales: the scale is measured or 1."""
        is_scale = name == "scaling_factor" and isinstance(value, float)
        return name == "frac_width" or is_scale or (name == "width" and value != 1)

    def validate(self) -> None:
        """Raises ConfigError if the width is not 1, or if the scales do not fit."""
        object.__setattr__(self, "scales", check_scales(self.scales, "binary.scales"))
        if self.scales is not None and not self.scaling_factor:
            raise ConfigError("binary.scales: scales require scaling_factor=True.")

    @property
    def is_deterministic(self) -> bool:
        """False if values are drawn at random."""
        return not self.stochastic

    @property
    def element(self) -> Sign:
        """Sign elements."""
        return Sign(self.bipolar, self.stochastic)

    @property
    def groups(self) -> Whole:
        """Channels."""
        return Whole("channel")

    @property
    def scaling(self) -> Scaling:
        """Mean magnitude, static scale, or no scale."""
        if self.scales is not None:
            return ConstantScale(self.scales)
        return FloatScale(MEAN) if self.scaling_factor else Unscaled()
