"""How a group's scale is found and stored: not at all, as a power of two, or as a float."""

from __future__ import annotations

import bisect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.formats.elements import Element
from chop.formats.exponents import exp2
from chop.formats.packing import pack_bits, unpack_bits

FRACTION_BITS = 23
"""Of a float32."""
TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Scales:
    """The scales of a tensor's groups.

    Attributes:
        values: float64, (..., groups, 1), what a group's elements are multiplied by; NaN makes
            the group NaN.
        codes: what is stored for them, int64 or float32, of the same shape.
        of_tensor: float32 scalar, a factor of all of `values`, or None.
    """

    values: Tensor
    codes: Tensor
    of_tensor: Tensor | None = None


class Scaling(ABC):
    """Finds scales, and packs what is stored of them."""

    width: int
    """Bits that a group's scale is stored in."""
    tensor_width: int = 0
    """Bits of the factor that all scales share."""

    @property
    def looks_at_all(self) -> bool:
        """True where a group's scale cannot be told without the other groups."""
        return self.tensor_width > 0

    @abstractmethod
    def measure(self, groups: Tensor) -> Scales:
        """The scales of groups, float64 (..., groups, group size)."""

    @abstractmethod
    def restore(self, packed: Tensor, count: int, of_tensor: Tensor | None) -> Tensor:
        """The values, (count, 1), of what `pack` stored."""

    def pack(self, codes: Tensor) -> Tensor:
        """The codes one after the other: uint8 bytes, or float32."""
        return codes.reshape(-1) if codes.is_floating_point() else pack_bits(codes, self.width)


def finite_amax(groups: Tensor) -> Tensor:
    """Largest finite magnitude of each group, (..., groups, 1)."""
    return groups.abs().nan_to_num(nan=0.0, posinf=0.0).amax(-1, keepdim=True)


def is_poisoned(groups: Tensor) -> Tensor:
    """True for groups with a NaN or an infinity, (..., groups, 1)."""
    return ~groups.isfinite().all(-1, keepdim=True)


@dataclass(frozen=True)
class Unscaled(Scaling):
    """Scale 1, of which nothing is stored."""

    width: int = 0

    def measure(self, groups: Tensor) -> Scales:
        """Ones."""
        ones = groups.new_ones((*groups.shape[:-1], 1))
        return Scales(ones, groups.new_empty(0, dtype=torch.float32))

    def restore(self, packed: Tensor, count: int, of_tensor: Tensor | None) -> Tensor:
        """Ones."""
        return packed.new_ones((count, 1), dtype=torch.float64)


@dataclass(frozen=True)
class SharedExponent(Scaling):
    """Scale 2^E, stored as the integer E - lowest.

    Attributes:
        exponent: E wanted for the largest finite magnitudes of groups; then it is clipped.
        lowest: the smallest E.
        width: bits of the code.
        has_nan: the last code is NaN and holds for groups with a NaN or an infinity. Otherwise
            infinities saturate, and NaN concerns nobody else.

    Source of E8M0 (lowest -127, width 8, NaN): OCP Microscaling Formats 1.0, section 5.4.1.
    """

    exponent: Callable[[Tensor], Tensor]
    lowest: int
    width: int
    has_nan: bool

    @property
    def largest(self) -> int:
        """The largest E."""
        return self.lowest + self._largest_code

    @property
    def _largest_code(self) -> int:
        return 2**self.width - 1 - self.has_nan

    def turn(self) -> tuple[int, int] | None:
        """How E follows the largest magnitude: up by one in every binade, in the same place.

        Returns: E for a magnitude of 1, before it is clipped, and the least f for which that of
            1 + f 2^-FRACTION_BITS is one more; 2^FRACTION_BITS where that is only 2. None where
            E follows in another way.
        """

        def exponent(fraction: int) -> int:
            amax = torch.tensor(
                1 + fraction * 2.0**-FRACTION_BITS, dtype=torch.float64, device="cpu"
            )
            return int(self.exponent(amax))

        offset = exponent(0)
        powers = torch.arange(-148.0, 128.0, dtype=torch.float64, device="cpu")
        if not torch.equal(self.exponent(powers.exp2()), powers.long() + offset):
            return None
        fractions = range(2**FRACTION_BITS)
        return offset, bisect.bisect_left(fractions, True, key=lambda f: exponent(f) > offset)

    def measure(self, groups: Tensor) -> Scales:
        """Scales from the largest finite magnitudes."""
        wanted = self.exponent(finite_amax(groups)) - self.lowest
        codes = wanted.clamp(0, self._largest_code)
        if self.has_nan:
            codes = codes.masked_fill(is_poisoned(groups), self._largest_code + 1)
        return Scales(self._values(codes), codes)

    def restore(self, packed: Tensor, count: int, of_tensor: Tensor | None) -> Tensor:
        """2^E."""
        return self._values(unpack_bits(packed, self.width, count).long().view(-1, 1))

    def _values(self, codes: Tensor) -> Tensor:
        return exp2(codes + self.lowest).masked_fill(codes > self._largest_code, torch.nan)


@dataclass(frozen=True)
class FloatScale(Scaling):
    """A float32 per group.

    Attributes:
        measured: the scale wanted for groups, float64 (..., groups, 1); it is rounded to float32.
    """

    measured: Callable[[Tensor], Tensor]
    width: int = 32

    def measure(self, groups: Tensor) -> Scales:
        """The rounded scales."""
        codes = self.measured(groups).float()
        return Scales(codes.double(), codes)

    def restore(self, packed: Tensor, count: int, of_tensor: Tensor | None) -> Tensor:
        """The floats."""
        return packed.double().view(-1, 1)


@dataclass(frozen=True, eq=False)
class GivenScale(Scaling):
    """A float32 per group that does not follow the data.

    Attributes:
        scales: float32, one-dimensional: one for each group, or one that all of them have.
    """

    scales: Tensor
    width: int = 32

    @property
    def looks_at_all(self) -> bool:
        """True where groups differ: theirs are told apart by their places."""
        return self.scales.numel() > 1

    def measure(self, groups: Tensor) -> Scales:
        """The scales in their places."""
        shape = groups.shape[:-1]
        scales = self.scales.to(groups.device) if shape.numel() else self.scales[:0]
        if scales.numel() not in (1, shape.numel()):
            raise ConfigError(
                f"scales: expected one, or {shape.numel()} for the groups of the tensor, got "
                f"{self.scales.numel()}."
            )
        codes = scales.expand(shape.numel()).view(*shape, 1)
        return Scales(codes.double(), codes)

    def restore(self, packed: Tensor, count: int, of_tensor: Tensor | None) -> Tensor:
        """The floats that were stored."""
        return packed.double().view(-1, 1)


@dataclass(frozen=True)
class ScaledFloatScale(Scaling):
    """A small float per group times a float32 per tensor.

    Attributes:
        element: the small float; NaN holds for groups with a NaN or an infinity.
        largest: the largest magnitude of a group's elements, to which its own is scaled.
    """

    element: Element
    largest: float
    tensor_width: int = 32

    @property
    def width(self) -> int:  # type: ignore[override]
        """Bits of the small float."""
        return self.element.width

    def measure(self, groups: Tensor) -> Scales:
        """Scales that put the tensor's largest magnitude at both ends of the range."""
        amax = finite_amax(groups)
        top = amax.amax() if amax.numel() else amax.new_zeros(())
        of_tensor = (top / (self.element.largest * self.largest)).float().clamp(min=TINY)
        wanted = amax / self.largest / of_tensor.double()
        small = self.element.round(wanted.masked_fill(is_poisoned(groups), torch.nan))
        return Scales(small * of_tensor.double(), self.element.stored(small), of_tensor)

    def restore(self, packed: Tensor, count: int, of_tensor: Tensor | None) -> Tensor:
        """The products."""
        assert of_tensor is not None
        codes = unpack_bits(packed, self.width, count).long()
        small = self.element.values(codes.view(-1, 1))
        return small * of_tensor.double()
