"""Division by a constant as a multiplication and a shift with exact rounding."""

from __future__ import annotations

from typing import NamedTuple


class Division(NamedTuple):
    """x / (n 2^s) as round(floor((x m + 2^(d-1)) / 2^d) / 2^t).

    Attributes:
        multiplier: m.
        dropped: d, above 0.
        shift: t.
    """

    multiplier: int
    dropped: int
    shift: int

    @classmethod
    def of(cls, divisor: int, shift: int, low: int, high: int) -> Division:
        """Returns the smallest product with exact rounded quotients for all `low` <= x <= `high`.

        Let v = x 2^a, with a so large that half of a result step is a whole v / n. m is 2^k / n,
        rounded up, and the error of v m / 2^k is below half of the addend 2^-L, with 2^L >= n. The
        L remaining fraction bits are then 0 exactly if n divides v.

        Args:
            divisor: n, odd and above 1.
            shift: s; below zero, the quotient is multiplied.
            low: minimum of x.
            high: maximum of x.

        Source: Granlund and Montgomery 1994, "Division by Invariant Integers using
        Multiplication", section 4.
        """
        fraction_bits, zeros = (divisor - 1).bit_length(), max(-shift, 0) + 1
        # x is shifted so that half of a result step is a whole number of quotients.
        largest = max(-low, high, 1) << zeros
        places = fraction_bits + zeros + 1
        # The error of the rounded-up multiplier must stay below half of the addend.
        while largest * (-(1 << places) % divisor) >= divisor << places - fraction_bits - 1:
            places += 1
        multiplier = -(-(1 << places) // divisor)
        return cls(multiplier, places - fraction_bits - zeros, max(shift, 0) + 1 + fraction_bits)
