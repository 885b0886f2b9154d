"""`ternary`: values -1, 0 and 1, with or without a scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from chop.config import Range
from chop.errors import ConfigError
from chop.formats.elements import Trit
from chop.formats.groups import CHANNELS, WHOLE_TENSOR
from chop.formats.layout import Layout
from chop.formats.lsq import LearnableFormat, check_scales
from chop.formats.scaling import ConstantScale, FloatScale, Scaling
from chop.formats.statistic import MEAN, Threshold

SHARE_OF_MEAN = 0.7
SHARE_OF_MAX = 0.05
STATISTICS = ("threshold", "mean", "max", "median")
"""Sources of the threshold; if MASE's config names several, the first one applies."""


@dataclass(frozen=True)
class Ternary(LearnableFormat):
    """Three values: -1, 0 and 1, optionally times a scale.

    Values: {-1, 0, 1} times a scale. The scale is 1, or the mean of the channel's magnitudes above
    the threshold. A channel is an index of the first axis; a vector is one channel.
    Rounding: magnitudes up to the threshold become zero, larger ones the signed scale. The
    threshold is one for the whole tensor: 0.7 of its mean or median magnitude, 0.05 of its largest
    magnitude, or a given number.
    Saturation: magnitudes above the scale become the scale.
    Special values: zero is always +0. NaN stays NaN in `round` and is encoded as 0. Only finite
    magnitudes enter the statistics.
    Storage: five values take 8 bits.

    Attributes:
        width: 2, the bits of an unpacked value.
        scaling_factor: computes the scale from the data instead of using 1.
        mean: known mean magnitude, or True to measure it: the threshold is 0.7 of it. The default
            if no statistic is named.
        median: median magnitude, or True to measure it: the threshold is 0.7 of it.
        max: largest magnitude, or True to measure it: the threshold is 0.05 of it.
        threshold: threshold as a number.
        scales: static scale of each channel, or one for all; requires `scaling_factor`.

    Learning, with `scaling_factor`: the scale starts at the mean of the magnitudes above the
    threshold; dy/dscale is the value without it; dy/dx is 1, and 0 beyond the scale. The threshold
    still follows the data.

    Example:
        >>> import torch
        >>> Ternary().round(torch.tensor([0.9, -0.8, 0.1, 0.0]))
        tensor([ 1., -1.,  0.,  0.])

    Source: mean: Li, Zhang and Liu 2016 (TWN), arXiv:1605.04711, section 2.2; largest: Zhu et al.
    2016 (TTQ), arXiv:1612.01064, section 4; learning: its equation 7, with one scale for both
    signs.
    """

    name: ClassVar[str] = "ternary"
    search_space: ClassVar[dict[str, Sequence[Any]]] = {"scaling_factor": (False, True)}

    width: Annotated[int, Range(2, 2, "bits")] = 2
    scaling_factor: bool = False
    mean: Annotated[bool | float | None, Range(0)] = None
    median: Annotated[bool | float | None, Range(0)] = None
    max: Annotated[bool | float | None, Range(0)] = None
    threshold: Annotated[float | None, Range(0)] = None
    scales: tuple[float, ...] | None = None

    @classmethod
    def ignores(cls, name: str, value: Any) -> bool:
        """Ignores widths other than 2."""
        return name == "frac_width" or (name == "width" and value != 2)

    @classmethod
    def nearest_valid(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Enables the scale for any nonzero number, and selects one statistic."""
        taken = dict(fields)
        if isinstance(taken.get("scaling_factor"), float):
            taken["scaling_factor"] = bool(taken["scaling_factor"])
        named = [name for name in STATISTICS if taken.get(name) not in (None, False)]
        return {name: x for name, x in taken.items() if name not in named[1:]}

    def validate(self) -> None:
        """Raises ConfigError if several thresholds are named, or if scales do not fit."""
        named = [name for name in ("mean", "median", "max", "threshold") if self._names(name)]
        if len(named) > 1:
            raise ConfigError(f"ternary: expected one threshold, got {' and '.join(named)}.")
        object.__setattr__(self, "scales", check_scales(self.scales, "ternary.scales"))
        if self.scales is not None and not self.scaling_factor:
            raise ConfigError("ternary.scales: scales require scaling_factor=True.")

    def _names(self, field: str) -> bool:
        return getattr(self, field) not in (None, False)

    def layout(self) -> Layout:
        """Returns ternary digits with the scales of channels."""
        groups = CHANNELS if self.scaling_factor else WHOLE_TENSOR
        return Layout(Trit(self._threshold), groups, self._scaling)

    @property
    def _scaling(self) -> Scaling | None:
        """Returns the mean of magnitudes above the threshold, a static scale, or no scale."""
        if self.scales is not None:
            return ConstantScale(self.scales)
        return FloatScale(MEAN) if self.scaling_factor else None

    @property
    def _threshold(self) -> Threshold | float:
        if self.threshold is not None:
            return float(self.threshold)
        kind: Any = next((name for name in ("median", "max") if self._names(name)), "mean")
        factor, known = SHARE_OF_MAX if kind == "max" else SHARE_OF_MEAN, getattr(self, kind)
        if known is None or isinstance(known, bool):
            return Threshold(factor, "largest" if kind == "max" else kind)
        return factor * float(known)
