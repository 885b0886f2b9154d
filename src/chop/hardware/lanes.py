"""Lanes: how many codes travel, and how many products are computed, in one cycle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


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


def fewest_lanes(size: int, fold: int) -> int:
    """The fewest lanes, a divisor, that carry `size` codes in at most `fold` cycles.

    >>> [fewest_lanes(48, 48), fewest_lanes(48, 10), fewest_lanes(48, 0)]
    [1, 6, 48]
    """
    return next((lanes for lanes in divisors(size) if size <= lanes * fold), size)


def matrix_lanes(rows: int, k: int, m: int, fold: int, sent: int) -> MatrixLanes:
    """The fewest multipliers that compute (rows, k) @ (k, m) in at most `fold` cycles.

    Among equals the first are those that need no conversion by way of fewer lanes than either
    end has, which would slow the stream, and then the ones closest to a square.

    Args:
        rows: of one sample.
        k: features in.
        m: features out.
        fold: most cycles for a sample; if no choice reaches it, the fastest one.
        sent: lanes of the producer.
    """

    def cost(lanes: MatrixLanes) -> tuple[bool, int, bool, int]:
        cycles = rows * (k // lanes.inputs) * (m // lanes.outputs)
        converts = lanes.inputs % sent != 0 and sent % lanes.inputs != 0
        distance = abs(lanes.inputs - lanes.outputs)
        return cycles > fold, lanes.inputs * lanes.outputs, converts, distance

    pairs = list(_pairs(k, m))
    best = min(pairs, key=cost)
    return max(pairs, key=lambda p: p.inputs * p.outputs) if cost(best)[0] else best


def _pairs(k: int, m: int) -> Iterator[MatrixLanes]:
    return (MatrixLanes(i, o) for i in divisors(k) for o in divisors(m))
