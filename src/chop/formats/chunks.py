"""Iteration over parts of a tensor that fit a CPU's caches."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

CHUNK = 2**15
"""Elements processed at a time. Temporaries beyond the caches cost about 4 times as much."""


def chunks(rows: Tensor, row_size: int = 1, size: int = CHUNK) -> Sequence[Tensor]:
    """Yields parts of the first axis with about `size` elements; the whole tensor on other devices.

    Args:
        rows: (rows, ...), `row_size` elements each.
        row_size: elements of a row, at least 1.
        size: elements of a part.
    """
    return rows.split(max(size // row_size, 1)) if rows.device.type == "cpu" else (rows,)
