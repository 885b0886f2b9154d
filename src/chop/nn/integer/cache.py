"""State of a decoder that reads one token at a time: its position and a key-value cache.

The batch of these operators is time: row b of a batch is the b-th token that a circuit reads, and
the first row is the first token after a reset.
"""

from __future__ import annotations

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.nn.integer.base import IntegerOperator
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


class IntegerCache(IntegerOperator):
    """Key-value cache: the rows of a sequence up to the present token, and zeros behind them.

    y[b, ..., j, :] = x[b - p[b] + j, ..., 0, :] for j <= p[b], otherwise 0.

    Width: that of the rows.

    Args:
        read: edge of the rows.
        length: number of rows of the result, the positions of a sequence.
    """

    def __init__(self, read: Edge, length: int) -> None:
        super().__init__(Edge.of(read.scalar_step, min(read.low, 0), max(read.high, 0)))
        self.length = length

    def forward(self, codes: Tensor, positions: Tensor) -> Tensor:
        """Returns the cached rows for each token, int64 (tokens, ..., length, features).

        Args:
            codes: rows (tokens, ..., 1, features).
            positions: their positions (tokens, 1), those of `IntegerPosition`.
        Raises:
            ConfigError: if the result is too large for the memory of a computer.
        """
        size = codes.numel() * self.length * codes.element_size()
        if size > MOST_BYTES:
            raise ConfigError(
                f"decode: caches of {self.length:,} tokens for {len(codes):,} tokens of the rows "
                f"take {size / 2**30:.3g} GiB at once; use fewer rows (--limit) or shorter ones "
                "(--max-length)."
            )
        offset = torch.arange(self.length) - positions
        token = torch.arange(len(codes)).view(-1, 1) + offset.clamp(max=0)
        rows = codes.squeeze(-2)[token].masked_fill(
            (offset > 0).view(*offset.shape, *[1] * (codes.dim() - 2)), 0
        )
        return rows.movedim(1, -2)
