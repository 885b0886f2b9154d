"""Lanes: how many codes travel, and how many products are computed, in one cycle."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

Choice = TypeVar("Choice")


class MatrixLanes(NamedTuple):
    """Lanes of a matrix-vector unit.

    Attributes:
        inputs: features of a beat in.
        outputs: results computed at a time.
    """

    inputs: int
    outputs: int


def divisors(n: int) -> list[int]:
    """All, in ascending order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [d for d in range(1, n + 1) if n % d == 0]


def converter_cycles(size: int, sent: int, wanted: int) -> int:
    """Cycles of a converter that slows `size` codes between a producer and a reader, else 0.

    Where neither number of lanes divides the other, the codes go by way of the greatest common
    divisor.

    >>> [converter_cycles(48, 4, 12), converter_cycles(48, 4, 6)]
    [0, 24]
    """
    common = math.gcd(sent, wanted)
    return 0 if common in (sent, wanted) else size // common


def first_within(choices: Sequence[Choice], fold: int, cycles: Callable[[Choice], int]) -> Choice:
    """The first choice that takes at most `fold` cycles; if none does, the first of the fastest.

    Args:
        choices: lanes, or what has them.
        fold: most cycles.
        cycles: of a choice.

    >>> [first_within(divisors(12), fold, lambda lanes: 24 // lanes) for fold in (8, 1)]
    [3, 12]
    """
    costs = [cycles(lanes) for lanes in choices]
    limit = max(fold, min(costs))
    return next(choice for choice, cost in zip(choices, costs, strict=True) if cost <= limit)


def fewest_lanes(size: int, fold: int, sent: int = 1) -> int:
    """The fewest lanes, a divisor, that carry `size` codes in at most `fold` cycles.

    Args:
        size: codes.
        fold: most cycles; if no lanes reach it, all codes travel at once.
        sent: lanes of the producer: a converter to the lanes is no slower than they are.

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
    """The fewest multipliers that compute (rows, k) @ (k, m) in at most `fold` cycles.

    Among equals the ones closest to a square come first.

    Args:
        rows: of one sample.
        k: features in.
        m: features out.
        fold: most cycles for a sample, those of a converter of lanes included; if no choice
            reaches it, the fastest one.
        sent: lanes of the producer.
        inputs: lanes of which the inputs' have to be one, and the more of them the better among
            equals; default, all that divide k.
    """

    def cost(lanes: MatrixLanes) -> tuple[bool, int, int]:
        cycles = rows * (k // lanes.inputs) * (m // lanes.outputs)
        is_slow = max(cycles, converter_cycles(rows * k, sent, lanes.inputs)) > fold
        shape = abs(lanes.inputs - lanes.outputs) if inputs is None else -lanes.inputs
        return is_slow, lanes.inputs * lanes.outputs, shape

    pairs = [MatrixLanes(i, o) for i in inputs or divisors(k) for o in divisors(m)]
    best = min(pairs, key=cost)
    return max(pairs, key=lambda p: p.inputs * p.outputs) if cost(best)[0] else best
