"""Number formats of QONNX nodes Quant and BipolarQuant, and the constants that they round."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.formats import Binary, Integer, NumberFormat, ScaleInteger
from chop.formats.integer import FRAC_LIMIT, MAX_WIDTH

ROUNDINGS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "ROUND": torch.round,
    "HALF_EVEN": torch.round,
    "FLOOR": torch.floor,
    "CEIL": torch.ceil,
    "DOWN": torch.trunc,
}
"""Roundings of constants by the attribute `rounding_mode`."""


@dataclass(frozen=True)
class Rounding:
    """Rounding of a Quant or BipolarQuant node: s clip(round(x / s)).

    Attributes:
        scale: s, float32, of any shape that broadcasts with the input.
        bits: attribute or input `bit_width`.
        is_signed: whether integers are negative, too.
        is_narrow: omits the lowest integer, or the highest of unsigned integers.
        mode: key of `ROUNDINGS`.
        is_bipolar: rounds to -s and s by the sign; zero becomes s.

    Source: the operators Quant and BipolarQuant of QONNX 1.0; Pappalardo et al. 2022,
    arXiv:2206.07527.
    """

    scale: Tensor
    bits: int = 1
    is_signed: bool = True
    is_narrow: bool = True
    mode: str = "ROUND"
    is_bipolar: bool = False

    def __post_init__(self) -> None:
        """Raises ConfigError for values that chop does not support."""
        if not bool((self.scale > 0).all() and self.scale.isfinite().all()):
            raise ConfigError("expected scales above 0")
        if self.mode not in ROUNDINGS:
            raise ConfigError(
                f"rounding_mode {self.mode} is not supported, only {', '.join(ROUNDINGS)}"
            )
        if not 1 <= self.bits <= MAX_WIDTH:
            raise ConfigError(f"expected a bit width of 1 to {MAX_WIDTH}, got {self.bits}")
        if self.bits == 1 and self.is_signed:  # in QONNX, its values are -s and s
            object.__setattr__(self, "is_bipolar", True)

    @property
    def ends(self) -> tuple[int, int]:
        """Smallest and largest integer."""
        if self.is_bipolar:
            return -1, 1
        high = 2 ** (self.bits - self.is_signed) - 1
        if self.is_signed:
            return self.is_narrow - high - 1, high
        return 0, high - self.is_narrow

    def constant(self, x: Tensor) -> Constant:
        """Rounds a constant."""
        codes = x / self.scale
        if self.is_bipolar:
            codes = torch.where(codes >= 0, 1.0, -1.0)
        else:
            codes = ROUNDINGS[self.mode](codes.clamp(*self.ends))
        values = codes * self.scale
        return Constant(values, self.scale.expand_as(values), self)

    def data_format(self) -> NumberFormat:
        """Returns the number format of an activation.

        Raises:
            ConfigError: if no format rounds like the node.
        """
        scale = _only(self.scale.flatten())
        if scale is None:
            raise ConfigError("activations need one scale, it has several")
        if self.is_bipolar:
            return _binary((scale,))
        frac_width = _fraction(scale)
        is_floor = self.mode == "FLOOR"
        if ROUNDINGS[self.mode] is not torch.round and not is_floor:
            raise ConfigError(f"activations can be rounded by ROUND or FLOOR, it has {self.mode}")
        if frac_width is not None and not self.is_narrow:
            return Integer(self.bits, frac_width, self.is_signed, is_floor)
        if is_floor:
            raise ConfigError("FLOOR needs narrow=0 and a scale that is a power of two")
        if self.bits == 1 or (self.is_narrow and not self.is_signed):
            raise ConfigError(f"no format has the integers 0 to {self.ends[1]} times {scale:g}")
        return ScaleInteger(self.bits, self.is_signed, scales=(scale,), is_symmetric=self.is_narrow)


@dataclass(frozen=True)
class Constant:
    """Constant of a file, possibly rounded by a Quant node.

    Attributes:
        values: float32 or int64.
        scale: scale of each value, in the same shape; None for constants that are not rounded.
        rounding: the rounding; None for others.
    """

    values: Tensor
    scale: Tensor | None = None
    rounding: Rounding | None = None

    def map(self, move: Callable[[Tensor], Tensor]) -> Constant:
        """Moves values and scales alike, by a transposition for instance."""
        scale = None if self.scale is None else move(self.scale)
        return replace(self, values=move(self.values), scale=scale)

    def number_format(self) -> NumberFormat | None:
        """Returns the format of a weight, or of a bias with one scale; None for floats.

        The first axis has the output channels.

        Raises:
            ConfigError: if scales differ within a channel.
        """
        if self.scale is None or self.rounding is None:
            return None
        rows = self.scale.reshape(len(self.scale), -1)
        scales, one = rows[:, 0], _only(rows.flatten())
        if one is None and bool((rows != rows[:, :1]).any()):
            raise ConfigError("expected one scale, or one per output channel of a weight")
        listed = tuple(scales.tolist()) if one is None else (one,)
        if self.rounding.is_bipolar:
            return _binary(listed)
        frac_width = None if one is None else _fraction(one)
        bits, is_signed = self.rounding.bits, self.rounding.is_signed
        if frac_width is not None:
            return Integer(bits, frac_width, is_signed)
        granularity: Literal["channel", "tensor"] = "channel" if one is None else "tensor"
        return ScaleInteger(
            max(bits, 2), is_signed, granularity=granularity, scales=listed, is_symmetric=False
        )


def _only(scales: Tensor) -> float | None:
    """Returns the scale of all values, or None if there are several."""
    return scales[0].item() if bool((scales == scales[0]).all()) else None


def _fraction(scale: float) -> int | None:
    """Returns f for a scale of 2^-f; None for others."""
    fraction, exponent = math.frexp(scale)
    return 1 - exponent if fraction == 0.5 and abs(1 - exponent) <= FRAC_LIMIT else None


def _binary(scales: tuple[float, ...]) -> Binary:
    if all(scale == 1 for scale in scales):
        return Binary()
    return Binary(scaling_factor=True, scales=scales)


def covering_format(formats: list[NumberFormat]) -> Integer | None:
    """Returns a format that holds all values of fixed-point formats exactly; None if none does.

    >>> covering_format([Integer(4, 2), Integer(8, 5, is_signed=False)])
    Integer(width=9, frac_width=5, is_signed=True, floor=False, percentile=99.9)
    """
    fixed = [x for x in formats if isinstance(x, Integer) and x.is_fitted]
    if len(fixed) < len(formats):
        return None
    frac_width = max(int(x.frac_width) for x in fixed)
    is_signed = any(x.is_signed for x in fixed)
    # An unsigned format needs a sign bit beside signed ones.
    whole = [int(x.width) - int(x.frac_width) + (is_signed and not x.is_signed) for x in fixed]
    width = max(whole) + frac_width
    return Integer(width, frac_width, is_signed) if width <= MAX_WIDTH else None
