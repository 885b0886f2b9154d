"""Division by a constant: a product and a shift that round as the quotient itself would."""

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
        """The smallest product whose rounded quotient is exact for all `low` <= x <= `high`.

        With v = x 2^a, a so large that a half of the result is a whole v / n: m is 2^k / n, rounded
        up, and v m / 2^k is off v / n by less than half of what is added, 2^-L with 2^L >= n. So
        its bits behind the point, of which L are kept, are 0 where n divides v, and nowhere else.

        Args:
            divisor: n, odd and above 1.
            shift: s; below zero, the quotient is multiplied.
            low: of x.
            high: of x.

        Source: Granlund and Montgomery 1994, "Division by Invariant Integers using
        Multiplication", section 4.
        """
        kept, zeros = (divisor - 1).bit_length(), max(-shift, 0) + 1
        largest = max(-low, high, 1) << zeros
        places = kept + zeros + 1
        while largest * (-(1 << places) % divisor) >= divisor << places - kept - 1:
            places += 1
        multiplier = -(-(1 << places) // divisor)
        return cls(multiplier, places - kept - zeros, max(shift, 0) + 1 + kept)
