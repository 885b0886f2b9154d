"""Scaling: a group's scale from its values, stored as a power of two or as a float."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.formats.chunks import CHUNK
from chop.formats.elements import Element
from chop.formats.exponents import BIAS, MANTISSA_BITS, exp2
from chop.formats.packing import pack_bits, unpack_bits
from chop.formats.statistic import LARGEST, Statistic

FRACTION_BITS = 23
"""Of a float32."""
TINY = torch.finfo(torch.float32).tiny
EPSILON = torch.finfo(torch.float32).eps
ABOVE_POWERS = math.nextafter(1.0, 2.0)
"""The least significand of a number that is no power of two."""


@dataclass(frozen=True)
class Scales:
    """The scales of a tensor's groups.

    Attributes:
        values: float64, (..., groups, 1), what a group's elements are multiplied by; NaN makes
            the group NaN.
        codes: what `pack` takes, of the same shape: int64 codes, or float numbers.
        of_tensor: float32 scalar, a factor of all of `values`, or None.
        zero_points: z in s (k - z), float64, shape of `values`; None where values are s k.
    """

    values: Tensor
    codes: Tensor
    of_tensor: Tensor | None = None
    zero_points: Tensor | None = None


class Scaling(ABC):
    """The rule from a statistic of a group to its scale, and how that is stored."""

    width: int
    """Bits that a group's scale is stored in."""
    tensor_width: int = 0
    """Bits of the factor that all scales share."""
    zero_width: int = 0
    """Bits of `width`, the high ones, that are the group's zero point; 0 without one."""
    statistic: Statistic | None
    """What scales follow; None where they do not follow the data."""
    has_nan: bool = False
    """True where a NaN or an infinity makes its whole group NaN."""
    stores_floats: bool = False
    """True where scales are stored as float32."""
    follows_values: bool = False
    """True where `scales` needs all values of a group, and not the statistic alone."""
    chunk: int = CHUNK
    """Elements whose scales are found at a time, on a CPU."""
    finds_any: bool = False
    """True where a scale is found again in whatever values it gives a group."""

    @property
    def spans_tensor(self) -> bool:
        """True where a group's scale depends on the other groups."""
        return self.tensor_width > 0

    def measure(self, groups: Tensor, counted: Tensor | None = None) -> Scales:
        """The scales of groups.

        Args:
            groups: float64, (..., groups, group size).
            counted: the same with NaN for values that scales do not follow; None: all count.
        """
        assert self.statistic is not None
        found = self.statistic.of(groups if counted is None else counted)
        return self.scales(found, has_non_finite(groups) if self.has_nan else None)

    @abstractmethod
    def scales(self, found: Tensor, non_finite: Tensor | None = None) -> Scales:
        """The scales for statistics of groups.

        Args:
            found: float64, (..., groups, 1).
            non_finite: boolean, True for groups with a NaN or an infinity; None for none.
        """

    @abstractmethod
    def restore(self, packed: Tensor, count: int, of_tensor: Tensor | None) -> Tensor:
        """The values, (count, 1), of what `pack` stored."""

    def restore_zero_points(self, packed: Tensor, count: int) -> Tensor | None:
        """The zero points, float64 (count, 1), of what `pack` stored; None without."""
        return None

    def representable(self, scales: Tensor, of_tensor: Tensor | None = None) -> Tensor | None:
        """The nearest scales that are found again where `anchors` keep their elements.

        Args:
            scales: float64, wanted ones, near those that were measured.
            of_tensor: the factor of all scales that was measured; None where there is none.
        Returns: None where the rule alone decides.
        """
        return None

    def anchors(self, groups: Tensor) -> Tensor:
        """True for values that, left as they round, let their group's scale be found again.

        Args:
            groups: float64, (..., groups, group size).
        """
        return groups.abs() == groups.abs().amax(-1, keepdim=True)

    def pack(self, codes: Tensor) -> Tensor:
        """The codes one after the other: uint8 bytes, or float32."""
        return codes.reshape(-1) if codes.is_floating_point() else pack_bits(codes, self.width)


def has_non_finite(groups: Tensor) -> Tensor:
    """True for groups with a NaN or an infinity, (..., groups, 1)."""
    return ~groups.isfinite().all(-1, keepdim=True)


@dataclass(frozen=True)
class Unscaled(Scaling):
    """Scale 1, of which nothing is stored."""

    width: int = 0
    statistic = None
    finds_any = True

    def measure(self, groups: Tensor, counted: Tensor | None = None) -> Scales:
        """Ones."""
        return self.scales(groups[..., :1])

    def scales(self, found: Tensor, non_finite: Tensor | None = None) -> Scales:
        """Ones."""
        return Scales(torch.ones_like(found), found.new_empty(0, dtype=torch.float32))

    def restore(self, packed: Tensor, count: int, of_tensor: Tensor | None) -> Tensor:
        """Ones."""
        return packed.new_ones((count, 1), dtype=torch.float64)


@dataclass(frozen=True)
class SharedExponent(Scaling):
    """Scale 2^E, stored as the integer E - lowest.

    E follows the largest finite magnitude amax = s 2^e, 1 <= s < 2: E = e + offset, one more where
    s >= increment_threshold, clipped to the range of the code.

    Attributes:
        lowest: the smallest E.
        width: bits of the code.
        has_nan: the last code is NaN and holds for groups with a NaN or an infinity. Otherwise
            infinities saturate, and NaN concerns nobody else.
        offset: E for a magnitude of 1.
        increment_threshold: above 1, at most 2, the default, which no s reaches; `ABOVE_POWERS`
            takes the exponent of the next power of two.

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
        """The least that the largest element of a group may be, for its scale to be found again."""
        return self.increment_threshold * 2.0 ** -(self.offset + 1)

    @property
    def largest(self) -> int:
        """The largest E."""
        return self.lowest + self._largest_code

    @property
    def _largest_code(self) -> int:
        codes: int = 2**self.width
        return codes - 1 - self.has_nan

    def exponent(self, amax: Tensor) -> Tensor:
        """E for magnitudes, int64, before it is clipped."""
        # The least fraction that goes up carries into the exponent's field.
        carry = int((2.0 - self.increment_threshold) * 2**MANTISSA_BITS)
        bits = amax.contiguous().view(torch.int64) + carry
        return (bits >> MANTISSA_BITS) - (BIAS - self.offset)

    def scales(self, found: Tensor, non_finite: Tensor | None = None) -> Scales:
        """Scales from the largest finite magnitudes."""
        codes = (self.exponent(found) - self.lowest).clamp(0, self._largest_code)
        if non_finite is not None:
            codes = codes.masked_fill(non_finite, self._largest_code + 1)
        return Scales(self._values(codes), codes)

    def representable(self, scales: Tensor, of_tensor: Tensor | None = None) -> Tensor:
        """The nearest powers of two, by their logarithms; elements tell whether they are found."""
        codes = scales.log2().round().nan_to_num(nan=0.0).long() - self.lowest
        return self._values(codes.clamp(0, self._largest_code))

    def restore(self, packed: Tensor, count: int, of_tensor: Tensor | None) -> Tensor:
        """2^E."""
        return self._values(unpack_bits(packed, self.width, count).long().view(-1, 1))

    def _values(self, codes: Tensor) -> Tensor:
        values = exp2(codes + self.lowest)
        return values.masked_fill(codes > self._largest_code, torch.nan) if self.has_nan else values


@dataclass(frozen=True)
class FloatScale(Scaling):
    """A float32 per group: float32(statistic / divisor).

    Attributes:
        statistic: what it follows.
        divisor: the element that the statistic becomes.
        is_positive: never below 2^-126, and 2^-23 where the statistic is zero.
        width: bits of a scale.
    """

    statistic: Statistic
    divisor: float = 1.0
    is_positive: bool = False
    width: int = 32
    stores_floats = True

    def scales(self, found: Tensor, non_finite: Tensor | None = None) -> Scales:
        """The rounded quotients."""
        wanted = found / self.divisor
        if self.is_positive:
            wanted = wanted.clamp(min=TINY).masked_fill(found == 0, EPSILON)
        codes = wanted.float()
        return Scales(codes.double(), codes)

    def representable(self, scales: Tensor, of_tensor: Tensor | None = None) -> Tensor:
        """The nearest float32."""
        return scales.float().double()

    def restore(self, packed: Tensor, count: int, of_tensor: Tensor | None) -> Tensor:
        """The floats."""
        return packed.double().view(-1, 1)


class StaticScale(Scaling):
    """Static scales: a float32 per group that does not follow the data, or one for all groups."""

    width: int = 32
    statistic = None
    stores_floats = True
    finds_any = True

    @abstractmethod
    def known(self, device: torch.device) -> Tensor:
        """float32, (n,)."""

    @property
    def spans_tensor(self) -> bool:
        """True where groups differ: each group has its own scale."""
        return self.known(torch.device("meta")).numel() > 1

    def measure(self, groups: Tensor, counted: Tensor | None = None) -> Scales:
        """The scales in their places.

        Raises:
            ConfigError: there are neither one nor as many as groups.
        """
        shape = groups.shape[:-1]
        known = self.known(groups.device)
        known = known if shape.numel() else known[:0]
        if known.numel() not in (1, shape.numel()):
            raise ConfigError(
                f"scales: expected one, or {shape.numel()} for the groups of the tensor, got "
                f"{known.numel()}."
            )
        codes = known.expand(shape.numel()).view(*shape, 1)
        return Scales(codes.double(), codes)

    def scales(self, found: Tensor, non_finite: Tensor | None = None) -> Scales:
        """The scales in their places, whatever the statistics."""
        return self.measure(found)

    def restore(self, packed: Tensor, count: int, of_tensor: Tensor | None) -> Tensor:
        """The floats that were stored."""
        return packed.double().view(-1, 1)


@dataclass(frozen=True)
class ConstantScale(StaticScale):
    """Static scales that are constants of the format.

    Attributes:
        given: float32 numbers.
    """

    given: tuple[float, ...]

    def known(self, device: torch.device) -> Tensor:
        """float32, (n,)."""
        return torch.tensor(self.given, dtype=torch.float32, device=device)


@dataclass(frozen=True, eq=False)
class LearnedScale(StaticScale):
    """Static scales that training learns.

    Attributes:
        tensor: float32, (n,).
    """

    tensor: Tensor

    def known(self, device: torch.device) -> Tensor:
        """The tensor on that device."""
        return self.tensor.to(device)


@dataclass(frozen=True)
class ScaledFloatScale(Scaling):
    """A small float per group times a float32 per tensor.

    Attributes:
        element: the small float; NaN holds for groups with a NaN or an infinity.
        largest: the largest magnitude of a group's elements, to which its own is scaled.
        tensor_width: bits of the tensor's scale.
        has_nan: the small float has NaN.
    """

    element: Element
    largest: float
    tensor_width: int = 32
    has_nan: bool = True
    statistic = LARGEST

    @property
    def width(self) -> int:  # type: ignore[override]
        """Bits of the small float."""
        return self.element.width

    def scales(self, found: Tensor, non_finite: Tensor | None = None) -> Scales:
        """Scales that put the tensor's largest magnitude at both ends of the range."""
        top = found.amax() if found.numel() else found.new_zeros(())
        of_tensor = (top / (self.element.largest * self.largest)).float().clamp(min=TINY)
        wanted = found / self.largest / of_tensor.double()
        if non_finite is not None:
            wanted = wanted.masked_fill(non_finite, torch.nan)
        small = self.element.round(wanted)
        return Scales(small * of_tensor.double(), small, of_tensor)

    def representable(self, scales: Tensor, of_tensor: Tensor | None = None) -> Tensor | None:
        """The nearest small floats that are not zero, times the factor of the tensor."""
        if of_tensor is None:
            return None
        least = self.element.step(scales.new_zeros(1))
        assert least is not None
        small = self.element.round((scales / of_tensor.double()).nan_to_num(nan=1.0))
        return torch.maximum(small, least) * of_tensor.double()

    def pack(self, codes: Tensor) -> Tensor:
        """The codes of small floats one after the other: uint8 bytes."""
        return pack_bits(self.element.stored(codes), self.width)

    def restore(self, packed: Tensor, count: int, of_tensor: Tensor | None) -> Tensor:
        """The products."""
        assert of_tensor is not None
        codes = unpack_bits(packed, self.width, count).long()
        small = self.element.values(codes.view(-1, 1))
        return small * of_tensor.double()
