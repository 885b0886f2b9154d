"""Products: splitting of wide factors in `chop_product`, and products built from lookup tables."""

from __future__ import annotations

from typing import NamedTuple

PART = 17
"""Bits of a part, without its sign."""


def cut(width: int) -> list[int]:
    """Returns the bits of a signed factor's parts. Lower parts are unsigned, with a sign bit of 0.

    >>> cut(18), cut(19), cut(36)
    ([18], [18, 2], [18, 18, 2])
    """
    count = max(width - 2, 0) // PART + 1
    return [PART + 1] * (count - 1) + [width - PART * (count - 1)]


def soft_levels(a: int, b: int) -> int:
    """Returns the adder-tree levels of a lookup-table product, SOFT of `chop_multiplier`.

    >>> [soft_levels(8, 8), soft_levels(9, 6), soft_levels(4, 1)]
    [3, 3, 1]
    """
    return max((min(a, b) - 1).bit_length(), 1)


class SoftParts(NamedTuple):
    """Resources of a product built from lookup tables.

    Attributes:
        gates: bits of the partial-product rows, one row per bit of the narrower factor.
        sums: bits of all sums.
        registers: bits of the registers behind them.
    """

    gates: int
    sums: int
    registers: int


def soft_parts(a: int, b: int) -> SoftParts:
    """Returns the resources of `chop_multiplier` for factors of `a` and `b` bits.

    >>> soft_parts(8, 8)
    SoftParts(gates=64, sums=68, registers=80)
    >>> soft_parts(8, 7)
    SoftParts(gates=56, sums=57, registers=77)
    """
    wide, rows, sums, registers = max(a, b), min(a, b), 0, 0
    for level in range(1, soft_levels(a, b) + 1):
        half = 1 << level - 1
        # A node is the product by as many bits as it has of the narrower factor.
        for first in range(0, rows, 2 * half):
            upper = min(rows - first, 2 * half) - half
            sums += wide + upper if upper > 0 else 0
            registers += wide + half + upper
    return SoftParts(a * b, sums, registers)


def by_constant(width: int, factor: int) -> list[tuple[int, int]]:
    """Returns the factor widths of each partial product of a product by a constant.

    Parts of the constant that are zero or a power of two need no product. Trailing zeros of a part
    are not multiplied.

    >>> by_constant(8, 128), by_constant(8, 48), by_constant(19, 3 << 17)
    ([], [(8, 3)], [(18, 3), (2, 3)])
    """
    magnitude = abs(factor)
    parts = [
        magnitude >> place & (1 << PART) - 1 for place in range(0, magnitude.bit_length(), PART)
    ]
    # `part & -part` is the lowest set bit. The zeros below it are a shift, which needs no gates.
    odd = [part // (part & -part) for part in parts if part]
    return [(bits, part.bit_length() + 1) for bits in cut(width) for part in odd if part > 1]
