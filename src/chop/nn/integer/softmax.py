"""Softmax on codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from chop.nn.integer.base import NO_CALL, Call, IntegerOperator, IntegerOptions
from chop.nn.integer.edge import Edge
from chop.nn.integer.table import check_index

EXPONENTIAL_BITS = {"small": 16, "exact": 28}
"""Width of the table's entries."""
EXACT_RESULT_BITS = 60


class IntegerSoftmax(IntegerOperator):
    """Softmax along one dimension: p = e R 2^-K, e = EXP[max - q], R = floor(2^K / sum e).

    EXP[d] = round((2^B - 1) exp(-d step)). R is computed once per row. The product e R is exact;
    the reader rounds it. Hidden elements have e = 0 and are excluded from the maximum; an entirely
    hidden row is zero.

    Width: EXP has an entry of B bits for each distance of two codes: B = 16 ("small") or 28
    ("exact"). The sum of n of them has B + ceil(log2 n) bits. The largest element has e = 2^B - 1,
    so that R has at most K - B + 1 bits, and e R is at most 2^K: K = 2 B - 2 + ceil(log2 n), which
    leaves R at least B - 2 bits; or 60 ("exact").

    Args:
        read: edge of the input, at most 16 bits.
        size: n, the number of elements in a row.
        dim: dimension of the rows.
        options: B and K.

    Source: subtraction of the maximum, Milakov and Gimelshein 2018, arXiv:1805.02867, section 2.
    """

    exponentials: Tensor

    fixed_because = "it follows from the number format"

    def __init__(self, read: Edge, size: int, dim: int, options: IntegerOptions) -> None:
        check_index("IntegerSoftmax", read)
        bits = EXPONENTIAL_BITS[options.internal_bits]
        small = 2 * bits - 2 + (size - 1).bit_length()
        places = small if options.internal_bits == "small" else EXACT_RESULT_BITS
        super().__init__(Edge.of(2.0**-places, 0, 2**places))
        self.places, self.dim, self.low = places, dim, read.low
        distances = torch.arange(read.high - read.low + 1).double() * read.scalar_step
        entries = ((2**bits - 1) * torch.exp(-distances)).round().long()
        self.register_buffer("exponentials", entries)

    @classmethod
    def from_quantized(
        cls,
        module: nn.Module | None,
        inputs: Sequence[Edge],
        options: IntegerOptions,
        call: Call = NO_CALL,
    ) -> Self:
        """See the base class; `call` has the shapes, and `dim` unless the module has it."""
        (read,), shape = inputs, call.shapes[0]
        dim = call.setting(module, "dim", None)
        if dim is None:  # what torch takes then
            dim = 0 if len(shape) in (0, 1, 3) else 1
        return cls(read, shape[dim], dim, options)

    def forward(self, codes: Tensor, visible: Tensor | None = None) -> Tensor:
        """Returns int64 in the shape of `codes`.

        Args:
            codes: the scores.
            visible: boolean, broadcasts with `codes`: False hides an element. Default: all True.
        """
        seen = codes if visible is None else codes.masked_fill(~visible, self.low)
        # Subtracting the maximum makes all exponents at most zero, so one table covers them.
        distances = seen.amax(self.dim, keepdim=True) - seen
        e = self.exponentials[distances]
        if visible is not None:
            e = e.masked_fill(~visible, 0)
        # An entirely hidden row has the sum zero; its result is zero with any divisor.
        total = e.sum(self.dim, keepdim=True).clamp(min=1)
        reciprocal = torch.div(2**self.places, total, rounding_mode="floor")
        return e * reciprocal
