"""Padding, nearest upsampling and the insertion of zeros: codes by lists of indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.nn.integer.base import NO_CALL, Call, IntegerOperator, IntegerOptions
from chop.nn.integer.edge import Edge

ZERO = -1
"""Index or place of an element that is 0."""


class IntegerResample(IntegerOperator):
    """Codes at given indices: y[p, q, ...] = x[i_p, j_q, ...], or 0 where an index is -1.

    Width: that of the input, with 0 among the codes if there are zeros.

    Args:
        read: edge of the input.
        indices: indices along each of the last dimensions, in their order.

    Raises:
        ConfigError: if the steps differ along one of these dimensions.
    """

    reads_exact = True

    def __init__(self, read: Edge, indices: Sequence[Sequence[int]]) -> None:
        if read.step.dim() and read.axis >= -len(indices):
            raise ConfigError(
                f"{type(self).__name__}: channels have different steps; use a single scale."
            )
        has_zeros = any(ZERO in along for along in indices)
        ends = (read.low, read.high, 0) if has_zeros else (read.low, read.high)
        super().__init__(replace(read, low=min(ends), high=max(ends)))
        self.indices, self.has_zeros = [list(along) for along in indices], has_zeros

    @classmethod
    def from_quantized(
        cls,
        module: nn.Module | None,
        inputs: Sequence[Edge],
        options: IntegerOptions,
        call: Call = NO_CALL,
    ) -> Self:
        """See the base class; `call` has the shapes and the arguments."""
        return cls(inputs[0], cls.list_indices(module, call))

    @classmethod
    def list_indices(cls, module: nn.Module | None, call: Call) -> list[list[int]]:
        """Returns the indices along each of the last dimensions."""
        raise NotImplementedError

    def gathered(self, values: Tensor, zero: int) -> Tensor:
        """Returns values at the indices, and `zero` where an index is -1.

        Args:
            values: int64, (..., *sizes).
            zero: what fills in.
        """
        for dim, along in enumerate(self.indices, -len(self.indices)):
            index = torch.tensor(along)
            values = values.index_select(dim, index.clamp(min=0))
            shape = -1, *[1] * (-dim - 1)
            values = values.masked_fill((index == ZERO).view(shape), zero)
        return values

    def forward(self, codes: Tensor) -> Tensor:
        """Maps (..., *sizes) to int64 (..., *numbers of indices)."""
        return self.gathered(codes, 0)


class IntegerPad(IntegerResample):
    """Padding with zeros."""

    @classmethod
    def list_indices(cls, module: nn.Module | None, call: Call) -> list[list[int]]:
        """Returns the indices of torch's padding, in which negative numbers crop."""
        pad = call.arguments.get("pad", getattr(module, "padding", None))
        mode, value = call.arguments.get("mode", "constant"), call.setting(module, "value", 0)
        if pad is None or mode != "constant" or value:
            raise ConfigError(
                "expected padding with zeros; write other borders as a torch.cat of slices"
            )
        sizes, pairs = call.shapes[0], list(zip(pad[::2], pad[1::2], strict=True))[::-1]
        if len(pairs) >= len(sizes):
            raise ConfigError("it pads the batch dimension")
        return [
            [i if 0 <= i < size else ZERO for i in range(-before, size + after)]
            for size, (before, after) in zip(sizes[-len(pairs) :], pairs, strict=True)
        ]


class IntegerInterpolate(IntegerResample):
    """Nearest upsampling by whole factors."""

    upsampled: ClassVar[str] = (
        "expected mode='nearest' and whole factors; write other ones as nn.ConvTranspose2d or as "
        "nn.Upsample(scale_factor=2, mode='nearest') and a convolution"
    )

    @classmethod
    def list_indices(cls, module: nn.Module | None, call: Call) -> list[list[int]]:
        """Returns each index as often as its factor."""
        sizes, mode = call.shapes[0][2:], call.setting(module, "mode", "nearest")
        factors = _factors(call.setting(module, "size", None), sizes) or _per_axis(
            call.setting(module, "scale_factor", None), len(sizes)
        )
        if mode not in ("nearest", "nearest-exact") or any(f < 1 or f % 1 for f in factors):
            raise ConfigError(cls.upsampled)
        return [
            [i for i in range(size) for _ in range(int(factor))]
            for size, factor in zip(sizes, factors, strict=True)
        ]


def _factors(wanted: Any, sizes: Sequence[int]) -> list[float]:
    """Returns the factors of given sizes of the result; none without sizes."""
    if wanted is None:
        return []
    return [new / old for new, old in zip(_per_axis(wanted, len(sizes)), sizes, strict=True)]


def _per_axis(setting: Any, axes: int) -> list[Any]:
    return list(setting) if isinstance(setting, list | tuple) else [setting] * axes
