"""Parts of a tensor that stay in a CPU's caches."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

CHUNK = 2**15
"""Elements worked on at a time. Larger temporaries leave the caches, at 4 times the cost."""


def chunks(rows: Tensor, row_size: int = 1, size: int = CHUNK) -> Sequence[Tensor]:
    """Parts of the first axis with about `size` elements; all of it on other devices.

    Args:
        rows: (rows, ...), `row_size` elements each.
        row_size: at least 1.
        size: elements of a part.
    """
    return rows.split(max(size // row_size, 1)) if rows.device.type == "cpu" else (rows,)
