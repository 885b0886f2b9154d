"""Parts of wide factors, as `chop_product` cuts them."""

from __future__ import annotations

PART = 17
"""Bits of a part without its sign."""


def cut(width: int) -> list[int]:
    """Bits of the parts of a signed factor; all but the highest are unsigned and have a sign of 0.

    >>> cut(18), cut(19), cut(36)
    ([18], [18, 2], [18, 18, 2])
    """
    count = max(width - 2, 0) // PART + 1
    return [PART + 1] * (count - 1) + [width - PART * (count - 1)]


def by_constant(width: int, factor: int) -> list[tuple[int, int]]:
    """Bits of the factors of each product of parts that a product by a constant needs.

    A part that is zero or a power of two needs none, and zeros at its end are no part of it.

    Args:
        width: of the other factor.
        factor: the constant.

    >>> by_constant(8, 128), by_constant(8, 48), by_constant(19, 3 << 17)
    ([], [(8, 3)], [(18, 3), (2, 3)])
    """
    magnitude = abs(factor)
    parts = [
        magnitude >> place & (1 << PART) - 1 for place in range(0, magnitude.bit_length(), PART)
    ]
    odd = [part // (part & -part) for part in parts if part]
    return [(bits, part.bit_length() + 1) for bits in cut(width) for part in odd if part > 1]
