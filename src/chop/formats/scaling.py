"""Scalings: rules that measure a group's scale and store it as a power of two or a float."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from chop.errors import ConfigError, describe
from chop.formats.chunks import CHUNK
from chop.formats.elements import Element
from chop.formats.exponents import BIAS, MANTISSA_BITS, exp2
from chop.formats.packing import pack_bits, unpack_bits
from chop.formats.statistic import LARGEST, Statistic

FRACTION_BITS = 23
"""Fraction bits of float32."""
TINY = torch.finfo(torch.float32).tiny
EPSILON = torch.finfo(torch.float32).eps
ABOVE_POWERS = math.nextafter(1.0, 2.0)
"""Smallest significand of a number that is not a power of two."""


@dataclass(frozen=True)
class Scales:
    """Scales of a tensor's groups.

    Attributes:
        values: float64, (..., groups, 1), factors of the groups; NaN makes a group NaN.
        codes: argument of `pack`, same shape: int64 codes, or float numbers.
        tensor_scale: float32 scalar, a common factor of `values`, or None.
        zero_points: z in s (k - z), float64, shape of `values`; None if values are s k.
    """

    values: Tensor
    codes: Tensor
    tensor_scale: Tensor | None = None
    zero_points: Tensor | None = None


class Scaling(ABC):
    """Rule that derives a group's scale from a statistic, and its storage."""

    width: int
    """Bits of a group's stored scale."""
    tensor_width: int = 0
    """Bits of the common factor of all scales."""
    zero_width: int = 0
    """High bits of `width` that store the group's zero point; 0 without one."""
    statistic: Statistic | None
    """Statistic that determines scales; None if they do not depend on the data."""
    has_nan: bool = False
    """True if a NaN or an infinity makes its whole group NaN."""
    stores_floats: bool = False
    """True if scales are stored as float32."""
    follows_values: bool = False
    """True if `scales` needs all values of a group instead of only the statistic."""
    chunk: int = CHUNK
    """Elements whose scales are measured at a time on a CPU."""
    finds_any: bool = False
    """True if any scale is measured again from the values that it rounded."""

    @property
    def spans_tensor(self) -> bool:
        """True if a group's scale depends on other groups."""
        return self.tensor_width > 0

    def measure(self, groups: Tensor, counted: Tensor | None = None) -> Scales:
        """Returns the scales of groups.

        Args:
            groups: float64, (..., groups, group size).
            counted: `groups` with NaN for values that do not affect scales; None if all do.
        """
        assert self.statistic is not None
        statistics = self.statistic.of(groups if counted is None else counted)
        return self.scales(statistics, has_non_finite(groups) if self.has_nan else None)

    @abstractmethod
    def scales(self, statistics: Tensor, non_finite: Tensor | None = None) -> Scales:
        """Returns the scales for statistics of groups.

        Args:
            statistics: float64, (..., groups, 1).
            non_finite: boolean, True for groups with a NaN or an infinity; None for none.
        """

    @abstractmethod
    def restore(self, packed: Tensor, count: int, tensor_scale: Tensor | None) -> Tensor:
        """Returns the values, (count, 1), of packed scales."""

    def restore_zero_points(self, packed: Tensor, count: int) -> Tensor | None:
        """Returns the zero points, float64 (count, 1), of packed scales, or None."""
        return None

    def representable(self, scales: Tensor, tensor_scale: Tensor | None = None) -> Tensor | None:
        """Returns the nearest scales that are measured again if `anchors` keep their elements.

        Args:
            scales: float64, requested scales, near the measured ones.
            tensor_scale: measured common factor of all scales, or None.
        Returns: None if only the rule determines scales.
        """
        return None

    def anchors(self, groups: Tensor) -> Tensor:
        """Returns a mask of values that must not change for their scale to be measured again.

        Args:
            groups: float64, (..., groups, group size).
        """
        return groups.abs() == groups.abs().amax(-1, keepdim=True)

    def pack(self, codes: Tensor) -> Tensor:
        """Packs codes to uint8 bytes or float32."""
        return codes.reshape(-1) if codes.is_floating_point() else pack_bits(codes, self.width)


def has_non_finite(groups: Tensor) -> Tensor:
    """Returns True for groups with a NaN or an infinity, (..., groups, 1)."""
    return ~groups.isfinite().all(-1, keepdim=True)


@dataclass(frozen=True)
class Unscaled(Scaling):
    """Constant scale of 1 without storage."""

    width: int = 0
    statistic = None
    finds_any = True

    def measure(self, groups: Tensor, counted: Tensor | None = None) -> Scales:
        """Returns ones."""
        return self.scales(groups[..., :1])

    def scales(self, statistics: Tensor, non_finite: Tensor | None = None) -> Scales:
        """Returns ones."""
        return Scales(torch.ones_like(statistics), statistics.new_empty(0, dtype=torch.float32))

    def restore(self, packed: Tensor, count: int, tensor_scale: Tensor | None) -> Tensor:
        """Returns ones."""
        return packed.new_ones((count, 1), dtype=torch.float64)


@dataclass(frozen=True)
class SharedExponent(Scaling):
    """Power-of-two scale 2^E, stored as the integer E - lowest.

    For the largest finite magnitude amax = s 2^e, 1 <= s < 2, E is e + offset, plus one if
    s >= increment_threshold, clipped to the range of the code.

    Attributes:
        lowest: smallest E.
        width: bits of the code.
        has_nan: reserves the last code for NaN, used for groups with a NaN or an infinity.
            Otherwise infinities saturate, and NaN does not affect other values.
        offset: E for a magnitude of 1.
        increment_threshold: above 1 and at most 2. The default 2 is never reached;
            `ABOVE_POWERS` takes the exponent of the next power of two.

    Source of E8M0 (lowest -127, width 8, NaN): OCP Microscaling Formats 1.0, section 5.4.1.
    """

    lowest: int
    width: int
    has_nan: bool = False
    offset: int = 0
    increment_threshold: float = 2.0
    statistic = LARGEST

    @property
    def least_largest(self) -> float:
        """Lower limit of a group's largest element for its scale to be measured again."""
        return self.increment_threshold * 2.0 ** -(self.offset + 1)

    @property
    def largest(self) -> int:
        """Largest E."""
        return self.lowest + self._largest_code

    @property
    def _largest_code(self) -> int:
        codes: int = 2**self.width
        return codes - 1 - self.has_nan

    def exponent(self, amax: Tensor) -> Tensor:
        """Returns E for magnitudes, int64, before clipping."""
        # The least fraction that goes up carries into the exponent's field.
        carry = int((2.0 - self.increment_threshold) * 2**MANTISSA_BITS)
        bits = amax.contiguous().view(torch.int64) + carry
        return (bits >> MANTISSA_BITS) - (BIAS - self.offset)

    def scales(self, statistics: Tensor, non_finite: Tensor | None = None) -> Scales:
        """Returns the scales for the largest finite magnitudes."""
        codes = (self.exponent(statistics) - self.lowest).clamp(0, self._largest_code)
        if non_finite is not None:
            codes = codes.masked_fill(non_finite, self._largest_code + 1)
        return Scales(self._values(codes), codes)

    def representable(self, scales: Tensor, tensor_scale: Tensor | None = None) -> Tensor:
        """Returns the nearest powers of two by logarithm; elements decide if they are stable."""
        codes = scales.log2().round().nan_to_num(nan=0.0).long() - self.lowest
        return self._values(codes.clamp(0, self._largest_code))

    def restore(self, packed: Tensor, count: int, tensor_scale: Tensor | None) -> Tensor:
        """Returns 2^E."""
        return self._values(unpack_bits(packed, self.width, count).long().view(-1, 1))

    def _values(self, codes: Tensor) -> Tensor:
        values = exp2(codes + self.lowest)
        return values.masked_fill(codes > self._largest_code, torch.nan) if self.has_nan else values


@dataclass(frozen=True)
class FloatScale(Scaling):
    """Float32 scale per group: float32(statistic / divisor), limited to the largest float32.

    Attributes:
        statistic: statistic of the group.
        divisor: element that the statistic is mapped to.
        is_positive: True for scales of at least 2^-126, and 2^-23 for a statistic of zero.
        width: bits of a scale.
    """

    statistic: Statistic
    divisor: float = 1.0
    is_positive: bool = False
    width: int = 32
    stores_floats = True

    def scales(self, statistics: Tensor, non_finite: Tensor | None = None) -> Scales:
        """Returns the rounded quotients."""
        wanted = statistics / self.divisor
        if self.is_positive:
            wanted = wanted.clamp(min=TINY).masked_fill(statistics == 0, EPSILON)
        codes = wanted.clamp(max=torch.finfo(torch.float32).max).float()
        return Scales(codes.double(), codes)

    def representable(self, scales: Tensor, tensor_scale: Tensor | None = None) -> Tensor:
        """Returns the nearest float32 numbers."""
        return scales.float().double()

    def restore(self, packed: Tensor, count: int, tensor_scale: Tensor | None) -> Tensor:
        """Returns the stored floats."""
        return packed.double().view(-1, 1)


class StaticScale(Scaling):
    """Static float32 scales: one per group or one for all groups."""

    width: int = 32
    statistic = None
    stores_floats = True
    finds_any = True

    @abstractmethod
    def known(self, device: torch.device) -> Tensor:
        """Returns the scales, float32 (n,)."""

    @property
    def spans_tensor(self) -> bool:
        """True if each group has its own scale."""
        return self.known(torch.device("meta")).numel() > 1

    def measure(self, groups: Tensor, counted: Tensor | None = None) -> Scales:
        """Returns the static scales of the groups.

        Raises:
            ConfigError: if there is neither one scale nor one per group.
        """
        shape = groups.shape[:-1]
        known = self.known(groups.device)
        known = known if shape.numel() else known[:0]
        if known.numel() not in (1, shape.numel()):
            raise ConfigError(
                f"scales: expected one, or one for each of the {shape.numel()} groups of the "
                f"tensor, got {known.numel()}."
            )
        codes = known.expand(shape.numel()).view(*shape, 1)
        return Scales(codes.double(), codes)

    def scales(self, statistics: Tensor, non_finite: Tensor | None = None) -> Scales:
        """Returns the static scales, ignoring the statistics."""
        return self.measure(statistics)

    def restore(self, packed: Tensor, count: int, tensor_scale: Tensor | None) -> Tensor:
        """Returns the stored floats."""
        return packed.double().view(-1, 1)


@dataclass(frozen=True)
class ConstantScale(StaticScale):
    """Static scales that are constants of the format.

    Attributes:
        given: float32 numbers.
    """

    given: tuple[float, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.given, tuple):
            raise ConfigError(
                f"ConstantScale: expected a tuple of numbers, got "
                f"{describe(self.given)}. A format without "
                "scales has the layout Layout(element)."
            )

    def known(self, device: torch.device) -> Tensor:
        """Returns the scales, float32 (n,)."""
        return torch.tensor(self.given, dtype=torch.float32, device=device)


@dataclass(frozen=True, eq=False)
class LearnedScale(StaticScale):
    """Static scales that are learned in training.

    Attributes:
        tensor: float32, (n,).
    """

    tensor: Tensor

    def known(self, device: torch.device) -> Tensor:
        """Returns the tensor on that device."""
        return self.tensor.to(device)


@dataclass(frozen=True)
class ScaledFloatScale(Scaling):
    """Minifloat scale per group times a float32 scale per tensor.

    Attributes:
        element: minifloat; NaN is used for groups with a NaN or an infinity.
        largest: largest magnitude of a group's elements.
        tensor_width: bits of the tensor's scale.
        has_nan: True: the minifloat has NaN.
        given: static float32 scale of the tensor; None to measure it.
    """

    element: Element
    largest: float
    tensor_width: int = 32
    has_nan: bool = True
    given: float | None = None
    statistic = LARGEST

    @property
    def width(self) -> int:  # type: ignore[override]
        """Bits of the minifloat."""
        return self.element.width

    def scales(self, statistics: Tensor, non_finite: Tensor | None = None) -> Scales:
        """Maps the tensor's largest magnitude to the largest scale and element."""
        top = statistics.amax() if statistics.numel() else statistics.new_zeros(())
        if self.given is not None:
            tensor_scale = top.new_full((), self.given, dtype=torch.float32)
        else:
            tensor_scale = (top / (self.element.largest * self.largest)).float().clamp(min=TINY)
        wanted = statistics / self.largest / tensor_scale.double()
        if non_finite is not None:
            wanted = wanted.masked_fill(non_finite, torch.nan)
        small = self.element.round(wanted)
        return Scales(small * tensor_scale.double(), small, tensor_scale)

    def representable(self, scales: Tensor, tensor_scale: Tensor | None = None) -> Tensor | None:
        """Returns the nearest nonzero minifloats, times the scale of the tensor."""
        if tensor_scale is None:
            return None
        least = self.element.step(scales.new_zeros(1))
        assert least is not None
        small = self.element.round((scales / tensor_scale.double()).nan_to_num(nan=1.0))
        return torch.maximum(small, least) * tensor_scale.double()

    def pack(self, codes: Tensor) -> Tensor:
        """Packs the codes of minifloats to uint8 bytes."""
        return pack_bits(self.element.stored(codes), self.width)

    def restore(self, packed: Tensor, count: int, tensor_scale: Tensor | None) -> Tensor:
        """Returns the products of minifloats and the tensor's scale."""
        assert tensor_scale is not None
        codes = unpack_bits(packed, self.width, count).long()
        small = self.element.values(codes.view(-1, 1))
        return small * tensor_scale.double()
