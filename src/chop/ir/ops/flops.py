"""Floating-point operations of products; a multiply-add counts as two.

Other operations, including biases, do not count, as in `torch.utils.flop_counter`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from chop.ir.ops.row import Shape


def by_weight(given: Sequence[Shape], result: Shape) -> int:
    """Counts linear layers and (grouped) convolutions: one row of the weight per result element."""
    return 2 * math.prod(result) * math.prod(given[1][1:])


def by_weight_transposed(given: Sequence[Shape], result: Shape) -> int:
    """Counts transposed convolutions: one row of the weight per input element."""
    return 2 * math.prod(given[0]) * math.prod(given[1][1:])


def matmul(given: Sequence[Shape], result: Shape) -> int:
    """Counts (..., N, K) by (..., K, M)."""
    return 2 * math.prod(result) * given[0][-1]


def attention(given: Sequence[Shape], result: Shape) -> int:
    """Counts queries (..., Q, D) by keys (..., K, D), and scores by values (..., K, V)."""
    return 2 * (math.prod(given[0]) + math.prod(result)) * given[1][-2]


def addmm(given: Sequence[Shape], result: Shape) -> int:
    """Counts (..., N, K) by (..., K, M), the last two arguments; includes sums over a batch."""
    return 2 * math.prod(given[-2]) * given[-1][-1]
