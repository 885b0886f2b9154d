"""State of a decoder that reads one token at a time: its position and a key-value cache.

The batch of these operators is time: row b of a batch is the b-th token that a circuit reads, and
the first row is the first token after a reset.
"""

from __future__ import annotations

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.nn.integer.base import IntegerOperator, extreme_products
from chop.nn.integer.base import matmul as exact_matmul
from chop.nn.integer.edge import Edge

MOST_BYTES = 2**33
"""Maximum size of the rows that a cache returns for all tokens of a batch."""


class IntegerPosition(IntegerOperator):
    """Position counter: p[b] = 0 if start[b] is not 0, otherwise p[b-1] + 1, modulo `length`.

    The token after a reset has the position 0. A sequence that is longer than `length` starts
    again at 0.

    Width: that of `length` - 1.

    Args:
        length: number of positions.
    """

    def __init__(self, length: int) -> None:
        super().__init__(Edge.of(1.0, 0, length - 1))
        self.length = length

    def forward(self, start: Tensor) -> Tensor:
        """Maps flags (tokens, 1) of the first token of each sequence to positions, int64."""
        order = torch.arange(len(start)).view(-1, 1)
        first = order.masked_fill(start == 0, 0).cummax(0).values
        return (order - first) % self.length


def cached_rows(rows: Tensor, positions: Tensor, length: int) -> Tensor:
    """Returns the rows of each token's sequence up to the token, and zeros behind them.

    y[b, ..., j, :] = x[b - p[b] + j, ..., 0, :] for j <= p[b], otherwise 0.

    Args:
        rows: x, (tokens, ..., 1, features).
        positions: p, positions of the tokens, (tokens, 1), those of `IntegerPosition`.
        length: number of positions.
    Returns: y, (tokens, ..., length, features).

    Raises:
        ConfigError: if the result is too large for the memory of a computer.
    """
    size = rows.numel() * length * rows.element_size()
    if size > MOST_BYTES:
        raise ConfigError(
            f"decode: caches of {length:,} tokens for {len(rows):,} tokens of the rows "
            f"take {size / 2**30:.3g} GiB at once; use fewer rows (--limit) or shorter ones "
            "(--max-length)."
        )
    offset = torch.arange(length) - positions
    token = torch.arange(len(rows)).view(-1, 1) + offset.clamp(max=0)
    later = (offset > 0).view(*offset.shape, *[1] * (rows.dim() - 2))
    return rows.squeeze(-2)[token].masked_fill(later, 0).movedim(1, -2)


class IntegerCachedMatmul(IntegerOperator):
    """Product of a row for each head with the keys or values of a sequence, in a cache.

    With y from `cached_rows` and `groups` heads h of the first input for each head of y:
    acc[b, h, 0, m] = sum over k of a[b, h, 0, k] y[b, h // groups, m, k] if `is_transposed`, and
    otherwise a[b, h, 0, k] y[b, h // groups, k, m]. The step is that of a times that of y.

    Width: K times the extreme products, K being the number of summed products.

    Args:
        a: edge of the first input.
        rows: edge of the keys or values.
        terms: K, the features of a key, or `length`.
        length: number of positions of a sequence.
        groups: heads of the first input that read the same head of the cache.
        is_transposed: the cache has keys, and not values.
    """

    def __init__(
        self, a: Edge, rows: Edge, terms: int, length: int, groups: int, is_transposed: bool
    ) -> None:
        low, high = extreme_products(
            a, Edge.of(rows.scalar_step, min(rows.low, 0), max(rows.high, 0))
        )
        super().__init__(Edge.of(a.scalar_step * rows.scalar_step, terms * low, terms * high))
        self.bound = terms * max(-low, high)
        self.length, self.groups, self.is_transposed = length, groups, is_transposed

    def forward(self, a: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
        """Returns the sums, int64 (tokens, heads, 1, length or features).

        Args:
            a: codes (tokens, heads, 1, features or length).
            rows: key or value of each token, (tokens, heads / groups, 1, features).
            positions: positions of the tokens, (tokens, 1).

        Raises:
            ConfigError: if the cached rows are too large for the memory of a computer.
        """
        cache = cached_rows(rows, positions, self.length).repeat_interleave(self.groups, -3)
        return exact_matmul(a, cache.mT if self.is_transposed else cache, self.bound)
