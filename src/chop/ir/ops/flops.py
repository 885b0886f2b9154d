"""Floating-point operations of products: two per multiplication and addition.

Everything else is left out, biases too, as `torch.utils.flop_counter` does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from chop.ir.ops.row import Shape


def by_weight(given: Sequence[Shape], result: Shape) -> int:
    """Linear layers and convolutions, grouped ones too: a row of the weight per result."""
    return 2 * math.prod(result) * math.prod(given[1][1:])


def by_weight_transposed(given: Sequence[Shape], result: Shape) -> int:
    """Transposed convolutions: a row of the weight per input."""
    return 2 * math.prod(given[0]) * math.prod(given[1][1:])


def matmul(given: Sequence[Shape], result: Shape) -> int:
    """(..., N, K) by (..., K, M)."""
    return 2 * math.prod(result) * given[0][-1]


def attention(given: Sequence[Shape], result: Shape) -> int:
    """Queries (..., Q, D) by keys (..., K, D), and the weights by values (..., K, V)."""
    return 2 * (math.prod(given[0]) + math.prod(result)) * given[1][-2]


def addmm(given: Sequence[Shape], result: Shape) -> int:
    """(..., N, K) by (..., K, M), the last two of what goes in; sums over a batch too."""
    return 2 * math.prod(given[-2]) * given[-1][-1]
