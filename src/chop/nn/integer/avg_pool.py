"""Average pooling of codes: sums of windows with divisors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from chop.nn.integer.base import NO_CALL, Call, IntegerOperator, IntegerOptions, matmul
from chop.nn.integer.edge import Edge


class Window(NamedTuple):
    """Range of one axis whose values are averaged.

    Attributes:
        start: index of the first value.
        end: index after the last value.
        divisor: divisor of the sum; may include padding.
    """

    start: int
    end: int
    divisor: int


class _IntegerAveragePool(IntegerOperator):
    """Average pooling: acc[p] = (sum over the window at p) f[p], to be divided by n.

    n is the least common multiple of the windows' counts, f[p] is n over the count at p: 1 if all
    windows have the same count. The reader divides, with a single rounding.

    Width: the bits of the input, and those of the largest f[p] times the size of its window.

    Args:
        read: edge of the input.
        windows: windows along each averaged axis, in the order of the axes.
        divisor: divisor of all sums, if it differs from the windows' counts.
    """

    dimensions: ClassVar[int]
    factor: Tensor

    def __init__(
        self, read: Edge, windows: Sequence[Sequence[Window]], divisor: int | None = None
    ) -> None:
        counts = _outer([[window.divisor for window in axis] for axis in windows])
        if divisor is not None:
            counts = torch.full_like(counts, divisor)
        common = math.lcm(*counts.flatten().tolist())
        factor = common // counts
        terms = _outer([[window.end - window.start for window in axis] for axis in windows])
        most, least = int((terms * factor).max()), int((terms * factor).min())
        low = min(read.low * most, read.low * least)
        high = max(read.high * most, read.high * least)
        super().__init__(replace(read, low=low, high=high, divisor=common * read.divisor))
        self.register_buffer("factor", factor)
        self.bound, self.axes = int(terms.max()) * max(-read.low, read.high), len(windows)
        self.stretches = [[(w.start, w.end) for w in axis] for axis in windows]

    @classmethod
    def from_quantized(
        cls,
        module: nn.Module | None,
        inputs: Sequence[Edge],
        options: IntegerOptions,
        call: Call = NO_CALL,
    ) -> Self:
        """See the base class; `call` has the shapes."""
        sizes = call.shapes[0][-cls.dimensions :]
        divisor = call.setting(module, "divisor_override", None)
        return cls(inputs[0], cls.windows(module, call, sizes), divisor)

    @classmethod
    def windows(
        cls, module: nn.Module | None, call: Call, sizes: Sequence[int]
    ) -> list[list[Window]]:
        """Returns the windows along each axis of these sizes."""
        raise NotImplementedError

    def forward(self, codes: Tensor) -> Tensor:
        """Maps codes to (N, C, positions), int64."""
        sums = codes
        for axis, stretches in enumerate(self.stretches, -self.axes):
            size = codes.size(axis)
            # The windows of an axis as a 0/1 matrix, since they may differ in size.
            inside = torch.tensor([[s <= i < e for s, e in stretches] for i in range(size)])
            rows = inside.to(codes)
            sums = matmul(sums.movedim(axis, -1), rows, self.bound).movedim(-1, axis)
        return sums * self.factor


class _Sliding(_IntegerAveragePool):
    """Windows of one size, at regular distances."""

    @classmethod
    def windows(
        cls, module: nn.Module | None, call: Call, sizes: Sequence[int]
    ) -> list[list[Window]]:
        """Returns torch's windows."""
        kernel = call.setting(module, "kernel_size", None)
        stride = call.setting(module, "stride", None) or kernel
        padding = call.setting(module, "padding", 0)
        ceil_mode = call.setting(module, "ceil_mode", False)
        counts_padding = call.setting(module, "count_include_pad", True)
        settings = (_per_axis(x, len(sizes)) for x in (kernel, stride, padding))
        return [
            _slide(size, width, step, zeros, ceil_mode, counts_padding)
            for size, width, step, zeros in zip(sizes, *settings, strict=True)
        ]


class _Adaptive(_IntegerAveragePool):
    """Adaptive windows, one per element of the result."""

    @classmethod
    def windows(
        cls, module: nn.Module | None, call: Call, sizes: Sequence[int]
    ) -> list[list[Window]]:
        """Returns torch's windows: from floor(i n / m) to ceil((i + 1) n / m)."""
        wanted = _per_axis(call.setting(module, "output_size", None), len(sizes))
        pairs = [(size, size if m is None else m) for size, m in zip(sizes, wanted, strict=True)]
        ends = [[(i * n // m, -(-(i + 1) * n // m)) for i in range(m)] for n, m in pairs]
        return [[Window(start, end, end - start) for start, end in axis] for axis in ends]


class IntegerAvgPool1d(_Sliding):
    """1-D average pooling, of (N, C, L)."""

    dimensions: ClassVar[int] = 1


class IntegerAvgPool2d(_Sliding):
    """2-D average pooling, of (N, C, H, W)."""

    dimensions: ClassVar[int] = 2


class IntegerAdaptiveAvgPool1d(_Adaptive):
    """1-D average pooling to a given size, of (N, C, L)."""

    dimensions: ClassVar[int] = 1


class IntegerAdaptiveAvgPool2d(_Adaptive):
    """2-D average pooling to a given size, of (N, C, H, W)."""

    dimensions: ClassVar[int] = 2


def _per_axis(setting: Any, axes: int) -> list[Any]:
    return list(setting) if isinstance(setting, list | tuple) else [setting] * axes


def _slide(
    size: int, kernel: int, stride: int, padding: int, ceil_mode: bool, counts_padding: bool
) -> list[Window]:
    last = size + 2 * padding - kernel + (stride - 1 if ceil_mode else 0)
    starts = range(-padding, last // stride * stride - padding + 1, stride)
    windows = []
    for start in starts:
        if ceil_mode and start >= size:  # in the padding behind the values
            break
        end = min(start + kernel, size + padding)
        inside = max(start, 0), min(end, size)
        count = end - start if counts_padding else inside[1] - inside[0]
        windows.append(Window(*inside, count))
    return windows


def _outer(axes: Sequence[Sequence[int]]) -> Tensor:
    """Returns int64: the outer product of the numbers of each axis."""
    product = torch.ones((), dtype=torch.int64)
    for numbers in axes:
        product = product.unsqueeze(-1) * torch.tensor(numbers)
    return product
