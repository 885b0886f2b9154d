"""`integer`: two's-complement fixed point, Q(width - frac_width).frac_width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from chop.config import Range
from chop.errors import ConfigError
from chop.formats.base import NumberFormat
from chop.formats.elements import Fixed
from chop.formats.layout import Layout
from chop.formats.quantizer import Quantizer
from chop.formats.statistic import even_sample

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

    Values: -2^(width-1) <= k < 2^(width-1), or 0 <= k < 2^width if unsigned.
    Rounding: to nearest, ties to even. With `floor`, towards minus infinity, like hardware that
    truncates.
    Saturation: values beyond the range, including infinities, become the nearest end.
    Special values: zero is always +0. NaN stays NaN in `round` and is encoded as 0.

    Attributes:
        width: bits per element, 1 to 32. `"auto"` lets `fitted` choose the fewest bits that
            saturate nothing, or 32; it requires a numeric `frac_width`.
        frac_width: fraction bits; may be negative, or above `width`. A rule lets `fitted` choose:
            `"minmax"` takes the finest grid that saturates nothing, `"percentile"` the finest that
            saturates few values, `"mse"` the one with the least squared error. `"auto"` is `"mse"`.
            Before fitting, a rule follows each tensor's own range. In an operator that is trained,
            it follows the largest magnitude of the last 16 training tensors, also in evaluation;
            copies, exports and state dicts preserve it.
        is_signed: False for 0 .. 2^width - 1.
        floor: rounds down instead of to nearest.
        percentile: percentage of nonzero values that `"percentile"` protects from saturation,
            above 0 to 100. Zeros are not counted: they fit every range.

    Example:
        >>> Integer(width=4, frac_width=1).round(torch.tensor([0.26, 9.0]))
        tensor([0.5000, 3.5000])

    Source: the definition of `torch.fake_quantize_per_tensor_affine` with scale 2^-frac_width and
    zero point 0.
    """

    name: ClassVar[str] = "integer"
    aliases: ClassVar[tuple[str, ...]] = ("fixed",)
    search_space: ClassVar[dict[str, Sequence[Any]]] = {
        "width": (4, 6, 8, 12, 16),
        "frac_width": (2, 3, 4, 6, 8, 12),
    }

    width: Annotated[int | Literal["auto"], Range(1, MAX_WIDTH, "bits")]
    frac_width: Annotated[
        int | Literal["auto", "minmax", "mse", "percentile"], Range(-FRAC_LIMIT, FRAC_LIMIT, "bits")
    ]
    is_signed: bool = True
    floor: bool = False
    percentile: Annotated[float, Range(most=100, unit="percent", above=0)] = 99.9

    def validate(self) -> None:
        """Raises ConfigError if a width does not fit the other fields."""
        if self.is_signed and self.width == 1:
            raise ConfigError("integer.width: a signed integer needs 2 bits; use 'binary' for 1.")
        if isinstance(self.width, str) and isinstance(self.frac_width, str):
            raise ConfigError(
                "integer: width and frac_width cannot both be derived. Set one of them to a number."
            )

    def layout(self) -> Layout:
        """Returns fixed-point elements.

        Raises:
            ConfigError: if the format is not fitted.
        """
        if not isinstance(self.width, int) or not isinstance(self.frac_width, int):
            raise ConfigError(f"{self.label}: call `fitted(x)` first.")
        return Layout(self._element(self.width, self.frac_width), overflow="infinity")

    def _element(self, width: int, frac_width: int) -> Fixed:
        """Returns the element of these widths, skipping the checks of a new format."""
        code: Any = "twos_complement" if self.is_signed else "unsigned"
        rounding: Any = "floor" if self.floor else "nearest_even"
        return Fixed(width, frac_width, code, is_symmetric=False, rounding=rounding)

    @property
    def code_range(self) -> tuple[int, int]:
        """Smallest and largest integer code k; requires a numeric `width`."""
        assert isinstance(self.width, int)
        if self.is_signed:
            return -(2 ** (self.width - 1)), 2 ** (self.width - 1) - 1
        return 0, 2**self.width - 1

    def bits(self, shape: Sequence[int] = ()) -> float:
        """Returns `width`, which includes the fraction; 32 for a width that is not fitted."""
        return float(self.width if isinstance(self.width, int) else MAX_WIDTH)

    @property
    def is_fitted(self) -> bool:
        """True if both widths are numbers."""
        return isinstance(self.width, int) and isinstance(self.frac_width, int)

    def fitted(self, samples: Tensor) -> Integer:
        """Derives the width or the fraction from samples; see the attributes.

        Non-finite samples are ignored.

        >>> Integer(8, "minmax").fitted(torch.tensor([0.0, 1.5])).frac_width
        6
        >>> Integer("auto", 4).fitted(torch.tensor([0.0, 1.5])).width
        6
        """
        if self.is_fitted:
            return self
        samples = samples.detach()
        is_finite = samples.isfinite()
        # Selecting values takes longer than all other steps, and is rarely necessary.
        finite = samples.flatten() if is_finite.all() else samples[is_finite]
        derives_width = isinstance(self.width, str)
        return self._settled(self._fewest_bits(finite) if derives_width else self._fraction(finite))

    def _settled(self, number: int) -> Integer:
        # A percentile that has done its work is no part of the format.
        name = "width" if isinstance(self.width, str) else "frac_width"
        return replace(self, percentile=type(self).percentile, **{name: number})  # type: ignore[arg-type]

    def derived_number(self, fitted: Quantizer) -> float:
        """Returns the derived width or fraction."""
        assert isinstance(fitted, Integer)
        return float(fitted.width if isinstance(self.width, str) else fitted.frac_width)

    def with_derived(self, number: float, largest: float) -> Integer:
        """Returns the format with a derived width or fraction; averages are rounded."""
        is_width = isinstance(self.width, str)
        least, most = (1 + self.is_signed, MAX_WIDTH) if is_width else (-FRAC_LIMIT, FRAC_LIMIT)
        return self._settled(min(max(round(number), least), most))

    def _fraction(self, finite: Tensor) -> int:
        finest = self._finest_without_saturation(finite)
        if self.frac_width == "minmax":
            return finest
        sample = even_sample(finite, MAX_SAMPLES).double()
        if self.frac_width == "percentile":
            return self._finest_with_few_saturated(sample, finest)
        return self._least_squared_error(sample, finest)

    def _fewest_bits(self, finite: Tensor) -> int:
        """Returns the smallest width at which neither end of the samples saturates."""
        if not finite.numel():
            return 1 + self.is_signed
        ends = torch.stack(finite.aminmax()).double()
        ends = ends if self.is_signed else ends.clamp(min=0)
        widths = range(1 + self.is_signed, MAX_WIDTH)
        enough = (w for w in widths if not replace(self, width=w).saturates(ends).any())
        return next(enough, MAX_WIDTH)

    def _finest_without_saturation(self, finite: Tensor) -> int:
        """Returns the largest fraction at which neither end of the samples saturates."""
        low, high = self.code_range
        # How far, in steps, a value may lie beyond an end and still round to it.
        above, below = (1.0, 0.0) if self.floor else (0.5, 0.5)
        limits = [FRAC_LIMIT]
        if finite.numel():
            smallest, largest = (end.item() for end in finite.aminmax())
            if largest > 0:
                # The tie at high + 1/2 rounds to an even code, beyond the range: strictly less.
                limits.append(math.ceil(math.log2((high + above) / largest)) - 1)
            if smallest < 0 and low < 0:
                limits.append(math.floor(math.log2((below - low) / -smallest)))
        chosen = min(limits)
        return int(self.width) - 1 if chosen == FRAC_LIMIT else max(chosen, -FRAC_LIMIT)

    def _finest_with_few_saturated(self, sample: Tensor, finest: int) -> int:
        """Returns the largest fraction that saturates few enough nonzero samples."""
        ranged = sample[sample > 0] if not self.is_signed else sample[sample != 0]
        # A share is not exact in binary: one part in a million of a value more is let pass.
        allowed = ranged.numel() * (100 - self.percentile) / 100 + 1e-6
        chosen = finest
        while ranged.numel() and chosen < FRAC_LIMIT:
            if replace(self, frac_width=chosen + 1).saturates(ranged).sum() > allowed:
                break
            chosen += 1
        return chosen

    def _least_squared_error(self, sample: Tensor, finest: int) -> int:
        """Returns the fraction with the least squared error."""
        # Below `finest` grids only get coarser; above it they trade saturation for precision.
        candidates = range(finest, min(finest + int(self.width) + SATURATING, FRAC_LIMIT + 1))
        chosen, least = finest, math.inf
        for frac_width in candidates:
            element = self._element(int(self.width), frac_width)
            error = element.round(sample).sub_(sample).square_().sum().item()
            if error < least:
                chosen, least = frac_width, error
                continue
            saturated = sample.clamp(element.lowest, element.highest)
            # Finer grids saturate the same values by more, also after the rounding of each sum.
            if saturated.sub_(sample).square_().sum().item() >= least:
                break
        return chosen

    @property
    def label(self) -> str:
        """`integer 8.4`: total width and fraction; `integer 8.p99.9` includes the percentile."""
        fraction = f"p{self.percentile:g}" if self.frac_width == "percentile" else self.frac_width
        return f"{'' if self.is_signed else 'u'}integer {self.width}.{fraction}"
