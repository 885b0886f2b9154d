"""Lanes: the number of codes transferred, and of products computed, in one cycle."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

Choice = TypeVar("Choice")


class MatrixLanes(NamedTuple):
    """Lanes of a matrix-vector unit.

    Attributes:
        inputs: features of an input beat.
        outputs: results computed in parallel.
    """

    inputs: int
    outputs: int


def divisors(n: int) -> list[int]:
    """Returns all divisors in ascending order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [d for d in range(1, n + 1) if n % d == 0]


def converter_cycles(size: int, sent: int, wanted: int) -> int:
    """Returns the cycles of a converter that slows down a stream of `size` codes, otherwise 0.

    If neither number of lanes divides the other, codes pass through the greatest common divisor.

    >>> [converter_cycles(48, 4, 12), converter_cycles(48, 4, 6)]
    [0, 24]
    """
    common = math.gcd(sent, wanted)
    return 0 if common in (sent, wanted) else size // common


def first_within(choices: Sequence[Choice], fold: int, cycles: Callable[[Choice], int]) -> Choice:
    """Returns the first choice within `fold` cycles, otherwise the first of the fastest ones.

    Args:
        choices: lanes, or objects that contain lanes.
        fold: maximum cycles.
        cycles: returns the cycles of a choice.

    >>> [first_within(divisors(12), fold, lambda lanes: 24 // lanes) for fold in (8, 1)]
    [3, 12]
    """
    costs = [cycles(lanes) for lanes in choices]
    limit = max(fold, min(costs))
    return next(choice for choice, cost in zip(choices, costs, strict=True) if cost <= limit)


def fewest_lanes(size: int, fold: int, sent: int = 1) -> int:
    """Returns the smallest divisor of `size` as lanes to transfer `size` codes in `fold` cycles.

    Args:
        size: codes.
        fold: maximum cycles; if unreachable, all codes are transferred at once.
        sent: lanes of the producer. A converter to the result is no slower than the result.

    >>> [fewest_lanes(48, 48), fewest_lanes(48, 10), fewest_lanes(48, 0)]
    [1, 6, 48]
    >>> fewest_lanes(48, 10, sent=8)
    8
    """
    fitting = (n for n in divisors(size) if n % sent == 0 or sent % n == 0)
    return next((lanes for lanes in fitting if size <= lanes * fold), size)


def matrix_lanes(
    rows: int, k: int, m: int, fold: int, sent: int, inputs: Sequence[int] | None = None
) -> MatrixLanes:
    """Returns the lanes with the fewest multipliers for (rows, k) @ (k, m) in `fold` cycles.

    Among equal choices, those closest to a square come first.

    Args:
        rows: rows of a sample.
        k: input features.
        m: output features.
        fold: maximum cycles per sample, lane converters included; if unreachable, the fastest
            choice is returned.
        sent: lanes of the producer.
        inputs: allowed input lanes; among equal choices more are better. Default: all divisors of
            k.
    """

    def cost(lanes: MatrixLanes) -> tuple[bool, int, int]:
        cycles = rows * (k // lanes.inputs) * (m // lanes.outputs)
        is_slow = max(cycles, converter_cycles(rows * k, sent, lanes.inputs)) > fold
        shape = abs(lanes.inputs - lanes.outputs) if inputs is None else -lanes.inputs
        return is_slow, lanes.inputs * lanes.outputs, shape

    pairs = [MatrixLanes(i, o) for i in inputs or divisors(k) for o in divisors(m)]
    best = min(pairs, key=cost)
    # No choice is within the fold: the one with the most products per cycle comes closest.
    return max(pairs, key=lambda p: p.inputs * p.outputs) if cost(best)[0] else best
