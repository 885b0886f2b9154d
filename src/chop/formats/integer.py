"""`integer`: two's-complement fixed point, Q(width - frac_width).frac_width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.formats.base import Encoded, NumberFormat, check_range, even_sample
from chop.formats.packing import pack_bits, unpack_bits

MAX_WIDTH = 32
# Enough to choose a fraction; 85M weights would take minutes.
MAX_SAMPLES = 2**18
# Fractions tried beyond those that keep the largest value within two bits of the range.
SATURATING = 4
# 2^-FRAC_LIMIT is still a normal float32, so the scale never rounds.
FRAC_LIMIT = 120


@dataclass(frozen=True)
class Integer(NumberFormat):
    """Fixed-point numbers k 2^-frac_width.

    Values: -2^(width-1) <= k < 2^(width-1), or 0 <= k < 2^width when unsigned.
    Rounding: to nearest, ties to even; towards minus infinity with `floor`, as truncating
    hardware does. Saturation: values beyond the range become the nearest end, infinities too.
    Special values: there is only +0; NaN stays NaN in `round`, and is 0 when stored.

    Attributes:
        width: bits per element, 1 to 32.
        frac_width: binary places; may be negative, or above `width`. `"mse"` and `"minmax"` wait
            for `fitted` (and follow each tensor's own range until then): `"minmax"` is the finest
            grid that saturates nothing, `"mse"` the one with the least squared error. `"auto"` is
            `"mse"`.
        is_signed: False for 0 .. 2^width - 1.
        floor: rounds down instead of to nearest.

    Source: the definition of `torch.fake_quantize_per_tensor_affine` with scale 2^-frac_width and
    zero point 0.
    """

    name: ClassVar[str] = "integer"
    aliases: ClassVar[tuple[str, ...]] = ("fixed",)
    search_space: ClassVar[dict[str, Sequence[Any]]] = {
        "width": (4, 6, 8, 12, 16),
        "frac_width": (2, 3, 4, 6, 8, 12),
    }

    width: int
    frac_width: int | Literal["auto", "minmax", "mse"]
    is_signed: bool = True
    floor: bool = False

    def validate(self) -> None:
        """Raises ConfigError where a width is out of range."""
        check_range("integer.width", self.width, range(1, MAX_WIDTH + 1))
        check_range("integer.frac_width", self.frac_width, range(-FRAC_LIMIT, FRAC_LIMIT + 1))
        if self.is_signed and self.width == 1:
            raise ConfigError("integer.width: a signed integer needs 2 bits; use 'binary' for 1.")

    @property
    def code_range(self) -> tuple[int, int]:
        """Smallest and largest integer code k."""
        if self.is_signed:
            return -(2 ** (self.width - 1)), 2 ** (self.width - 1) - 1
        return 0, 2**self.width - 1

    def round(self, x: Tensor) -> Tensor:
        """Nearest representable value, ties to even, saturating.

        Args:
            x: any shape, any floating dtype; NaN stays NaN.
        Returns: same shape and dtype as `x`; a dtype with fewer significant bits than `width`
            rounds once more.

        Example:
            >>> Integer(width=4, frac_width=1).round(torch.tensor([0.26, 9.0]))
            tensor([0.5000, 3.5000])
        """
        number_format = self.fitted(x)
        # Adding zero turns -0 into +0, the only zero that two's complement has.
        return ((number_format._codes(x) / 2.0**number_format.frac_width) + 0.0).to(x.dtype)  # type: ignore[operator]

    def _codes(self, x: Tensor) -> Tensor:
        """k as a floating tensor, wide enough to hold it exactly."""
        exact = torch.float32 if self.width <= 24 and x.dtype != torch.float64 else torch.float64
        scaled = x.to(exact) * 2.0**self.frac_width  # type: ignore[operator]
        whole = scaled.floor() if self.floor else scaled.round()
        return whole.clamp(*self.code_range)

    def saturates(self, x: Tensor) -> Tensor:
        """True where `x` rounds to a step beyond the range (NaN: False)."""
        number_format = self.fitted(x)
        low, high = number_format.code_range
        scaled = x.double() * 2.0**number_format.frac_width  # type: ignore[operator]
        whole = scaled.floor() if self.floor else scaled.round()
        return (whole < low) | (whole > high)

    def bits(self, shape: Sequence[int] = ()) -> float:
        """`width`: the fraction is a part of it."""
        return float(self.width)

    def encode(self, x: Tensor) -> Encoded:
        """Two's-complement codes, `width` bits each.

        Raises:
            ConfigError: `frac_width` still waits for `fitted`.
        """
        if not self.is_fitted:
            raise ConfigError("integer.frac_width: call `fitted(x)` before `encode(x)`.")
        codes = self._codes(x).nan_to_num(0.0).to(torch.int64)
        return Encoded(pack_bits(codes, self.width), x.shape, x.dtype)

    def decode(self, encoded: Encoded) -> Tensor:
        """The values k 2^-frac_width in the dtype that was encoded."""
        codes = unpack_bits(encoded.codes, self.width, encoded.shape.numel())
        if self.is_signed:
            codes = codes - ((codes >> (self.width - 1)) << self.width)
        values = codes.double() / 2.0**self.frac_width  # type: ignore[operator]
        return values.to(encoded.dtype).view(encoded.shape)

    @property
    def is_fitted(self) -> bool:
        """True when `frac_width` is a number."""
        return isinstance(self.frac_width, int)

    def fitted(self, samples: Tensor) -> Integer:
        """The fraction derived from the samples: see `frac_width`.

        >>> Integer(8, "minmax").fitted(torch.tensor([0.0, 1.5])).frac_width
        6
        """
        if isinstance(self.frac_width, int):
            return self
        finest = self._finest_without_saturation(samples)
        if self.frac_width == "minmax":
            return replace(self, frac_width=finest)
        return replace(self, frac_width=self._least_squared_error(samples, finest))

    def _finest_without_saturation(self, samples: Tensor) -> int:
        """Largest f for which neither end of the samples rounds beyond the range."""
        low, high = self.code_range
        # How far, in steps, a value may lie beyond an end and still round to it.
        above, below = (1.0, 0.0) if self.floor else (0.5, 0.5)
        finite = samples.detach()[samples.detach().isfinite()].double()
        limits = [FRAC_LIMIT]
        if finite.numel():
            smallest, largest = finite.min().item(), finite.max().item()
            if largest > 0:
                # The tie at high + 1/2 rounds to an even code, beyond the range: strictly less.
                limits.append(math.ceil(math.log2((high + above) / largest)) - 1)
            if smallest < 0 and low < 0:
                limits.append(math.floor(math.log2((below - low) / -smallest)))
        chosen = min(limits)
        return self.width - 1 if chosen == FRAC_LIMIT else max(chosen, -FRAC_LIMIT)

    def _least_squared_error(self, samples: Tensor, finest: int) -> int:
        """The f of least squared error. Below `finest` the grids only get coarser."""
        finite = samples.detach()
        finite = even_sample(finite[finite.isfinite()], MAX_SAMPLES).double()
        candidates = range(finest, min(finest + self.width + SATURATING, FRAC_LIMIT + 1))

        def squared_error(frac_width: int) -> float:
            rounded = replace(self, frac_width=frac_width).round(finite)
            return (rounded - finite).square().sum().item()

        return min(candidates, key=squared_error)

    @property
    def label(self) -> str:
        """`integer 8.4`: total width, then fraction."""
        return f"{'' if self.is_signed else 'u'}integer {self.width}.{self.frac_width}"
