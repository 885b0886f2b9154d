"""`ternary`: -1, 0 and 1, with or without a scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.formats.base import Encoded, NumberFormat, check_range
from chop.formats.binary import mean_magnitude
from chop.formats.groups import Whole
from chop.formats.packing import TRITS_PER_BYTE, pack_trits, unpack_trits
from chop.formats.scaled import cast

SHARE_OF_MEAN = 0.7
SHARE_OF_MAX = 0.05
CHANNELS = Whole("channel")


@dataclass(frozen=True)
class Ternary(NumberFormat):
    """Three values.

    Values: {-1, 0, 1} times a scale; the scale is 1, or the mean of the magnitudes kept of a
    channel, an index of the first axis; a vector is one channel.
    Rounding: zero up to the threshold, else the sign. The threshold is that of the whole tensor:
    0.7 of its mean or median magnitude, 0.05 of its largest one, or a number. Saturation: beyond
    the scale. Special values: there is only +0; NaN stays NaN, and is 0 when stored; statistics
    are of finite magnitudes. Storage: five values in 8 bits.

    Attributes:
        width: 2, the bits of an unpacked value.
        scaling_factor: takes the scale from the data instead of 1.
        mean: the mean magnitude if it is known beforehand, or True to measure it: the threshold
            is 0.7 of it. The default where no statistic is named.
        median: the same, of the median magnitude.
        max: the same, of the largest magnitude: the threshold is 0.05 of it.
        threshold: the threshold itself.

    Example:
        >>> Ternary().round(torch.tensor([0.9, -0.8, 0.1, 0.0]))
        tensor([ 1., -1.,  0.,  0.])

    Source: mean: Li, Zhang and Liu 2016 (TWN), arXiv:1605.04711, section 2.2; largest: Zhu et al.
    2016 (TTQ), arXiv:1612.01064, section 4.
    """

    name: ClassVar[str] = "ternary"
    search_space: ClassVar[dict[str, Sequence[Any]]] = {"scaling_factor": (False, True)}

    width: int = 2
    scaling_factor: bool = False
    mean: bool | float | None = None
    median: bool | float | None = None
    max: bool | float | None = None
    threshold: float | None = None

    def validate(self) -> None:
        """Raises ConfigError unless the width is 2 and at most one threshold is named."""
        check_range("ternary.width", self.width, range(2, 3))
        named = [name for name in ("mean", "median", "max", "threshold") if self._names(name)]
        if len(named) > 1:
            raise ConfigError(f"ternary: expected one threshold, got {' and '.join(named)}.")

    def _names(self, field: str) -> bool:
        return getattr(self, field) not in (None, False)

    def threshold_of(self, x: Tensor) -> float:
        """The magnitude above which values of the tensor are kept."""
        if self.threshold is not None:
            return float(self.threshold)
        finite = x[x.isfinite()].double().abs()
        if finite.numel() == 0:
            return 0.0
        if self._names("median"):
            return SHARE_OF_MEAN * _given(self.median, finite.median())
        if self._names("max"):
            return SHARE_OF_MAX * _given(self.max, finite.amax())
        return SHARE_OF_MEAN * _given(self.mean, finite.mean())

    def round(self, x: Tensor) -> Tensor:
        """The value for each number; a dtype that cannot hold the scale rounds once more.

        Args:
            x: any shape and floating dtype.
        Returns: same shape and dtype as `x`.
        """
        digits, scale = self._digits_and_scales(x)
        return self._values(digits, scale, x.dtype).masked_fill(x.isnan(), torch.nan)

    def _digits_and_scales(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """-1, 0, 1 as float64, in the shape of `x`, and the float32 scale of each channel."""
        exact = x.double()
        kept = exact.abs() > self.threshold_of(x)
        channels = CHANNELS.split(exact.masked_fill(~kept, torch.nan))
        measured = mean_magnitude(channels).float()
        scale = measured if self.scaling_factor else torch.ones_like(measured)
        return torch.where(kept, exact.sign(), 0.0), scale

    def _values(self, digits: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        values = CHANNELS.split(digits) * scale.double()
        return cast(CHANNELS.join(values, digits.shape) + 0.0, dtype)

    def bits(self, shape: Sequence[int] = ()) -> float:
        """1.6, and 32 for each channel's scale."""
        scale_bits = 32 * CHANNELS.count(shape) if self.scaling_factor and shape else 0
        return 8 / TRITS_PER_BYTE + scale_bits / max(math.prod(shape), 1)

    def encode(self, x: Tensor) -> Encoded:
        """Base-3 digits 1 above the values' own, five to a byte, and the scales."""
        digits, scale = self._digits_and_scales(x)
        scales = scale.reshape(-1) if self.scaling_factor else None
        return Encoded(pack_trits(digits.nan_to_num(0.0).long() + 1), x.shape, x.dtype, scales)

    def decode(self, encoded: Encoded) -> Tensor:
        """The digits times the scales."""
        shape, dtype = encoded.shape, encoded.dtype
        digits = unpack_trits(encoded.codes, shape.numel()).view(shape)
        y = CHANNELS.split(digits).to(dtype) - 1
        if encoded.scales is not None:
            # Adding zero turns the -0 that a scale may underflow to into +0.
            y = y * cast(encoded.scales.double(), dtype).view(-1, 1) + 0.0
        return CHANNELS.join(y, shape)

    def saturates(self, x: Tensor) -> Tensor:
        """True beyond the scale."""
        scale = self._digits_and_scales(x)[1].double()
        return CHANNELS.join(CHANNELS.split(x.double()).abs() > scale, x.shape)


def _given(statistic: bool | float | None, measured: Tensor) -> float:
    is_number = statistic is not None and not isinstance(statistic, bool)
    return float(statistic) if is_number else measured.item()  # type: ignore[arg-type]
