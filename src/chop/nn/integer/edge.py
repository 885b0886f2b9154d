"""Edges (integers between two operators) and grids (codes that a reader rounds to)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from chop.formats import NumberFormat
from chop.formats.elements import Element, Fixed, Sign, Trit
from chop.kernels.integers import Integers, one_scale

GridRounding = Literal["nearest_even", "floor", "sign", "threshold"]
"""Rounding to codes: to nearest, ties to even; down; `high` for values from zero on, else `low`;
or the sign beyond a threshold, else 0.
"""


def bit_width(low: int, high: int) -> int:
    """Returns the two's-complement width of the range `low` to `high`.

    >>> [bit_width(-128, 127), bit_width(0, 255), bit_width(0, 0)]
    [8, 9, 1]
    """
    return 1 + max(
        (~low if low < 0 else low).bit_length(), (~high if high < 0 else high).bit_length()
    )


def shift_between(step: float, other: float) -> int | None:
    """Returns s with `step` = `other` times 2^s, exactly; None if there is none.

    >>> [shift_between(0.25, 1.0), shift_between(3.0, 1.5), shift_between(1.0, 3.0)]
    [-2, 1, None]
    """
    (fraction, exponent), (fraction_other, exponent_other) = math.frexp(step), math.frexp(other)
    return exponent - exponent_other if fraction == fraction_other else None


@dataclass(frozen=True, eq=False)
class Edge:
    """Integers between two operators: code k represents k step / divisor.

    Attributes:
        step: float64 (), or (n,), one per channel along `axis`. float64 represents powers of two
            and products of two float32 scales exactly.
        axis: axis of the channels, counted from the end: -1 after a linear layer, -3 after a 2-D
            convolution; unused for ().
        low: proven lower bound of all codes.
        high: proven upper bound.
        divisor: pending divisor of a mean.
        is_trained: True if the step is a scale of loadable weights, which other weights change.
    """

    step: Tensor
    axis: int
    low: int
    high: int
    divisor: int = 1
    is_trained: bool = False

    @classmethod
    def of(cls, step: float, low: int, high: int, divisor: int = 1) -> Self:
        """Returns an edge whose codes have one step."""
        return cls(torch.tensor(step, dtype=torch.float64), -1, low, high, divisor)

    @property
    def bits(self) -> int:
        """The width of the codes in two's complement."""
        return bit_width(self.low, self.high)

    @property
    def steps(self) -> list[float]:
        """The steps: one, or one per channel."""
        steps: list[float] = self.step.reshape(-1).tolist()
        return steps

    @property
    def scalar_step(self) -> float:
        """The only step; there must not be others."""
        (step,) = self.steps
        return step

    def by_channel(self, values: Tensor) -> Tensor:
        """Reshapes `values`, () or (n,), to broadcast with codes."""
        return values.reshape(-1, *[1] * (-self.axis - 1)) if values.dim() else values

    def decode(self, codes: Tensor) -> Tensor:
        """Returns the values of codes, float64."""
        return codes.double() * self.by_channel(self.step) / self.divisor


@dataclass(frozen=True)
class Grid:
    """Numbers that a reader rounds to: k step for integers `low` <= k <= `high`.

    Attributes:
        step: above zero.
        low: smallest k; values below saturate.
        high: largest k.
        rounding: maps a value to k.
        threshold: for the rounding "threshold": magnitudes up to it become 0.
    """

    step: float
    low: int
    high: int
    rounding: GridRounding = "nearest_even"
    threshold: float = 0.0

    @classmethod
    def of(cls, number_format: NumberFormat) -> Grid | None:
        """Returns the grid of a format, with data-independent numbers; None if it has none.

        Formats with a grid have integer, sign or ternary elements (with a fixed threshold), and no
        scale or one data-independent scale for the tensor.
        """
        layout = number_format.layout() if number_format.is_fitted else None
        if layout is None or layout.levels is not None:
            return None
        parts = _parts(layout.element)
        if parts is None:
            return None
        integers, rounding, threshold = parts
        scale = one_scale(layout, integers)
        if not scale:
            return None
        step = torch.tensor(scale, dtype=torch.float32).item()
        return cls(step, integers.low, integers.high, rounding, threshold)

    @property
    def edge(self) -> Edge:
        """The edge of codes rounded to the grid."""
        return Edge.of(self.step, self.low, self.high)

    def codes(self, x: Tensor) -> Tensor:
        """Returns the int64 codes of real numbers with the rounding of the format; NaN is 0.

        Args:
            x: any shape and floating dtype.
        """
        values = x.double().nan_to_num(nan=0.0)
        if self.rounding == "sign":
            return torch.where(values >= 0, self.high, self.low)
        if self.rounding == "threshold":
            return torch.where(values.abs() > self.threshold, values.sign(), 0).long()
        steps = values / self.step
        rounded = steps.floor() if self.rounding == "floor" else steps.round()
        return rounded.clamp(self.low, self.high).long()


def _parts(element: Element) -> tuple[Integers, GridRounding, float] | None:
    """Returns the codes and step of an element, its rounding, and its threshold."""
    if isinstance(element, Fixed):
        step = 2.0**-element.frac_width
        return Integers(element.lowest_code, element.largest_code, step), element.rounding, 0.0
    if isinstance(element, Sign) and not element.stochastic:
        return Integers(int(element.lowest), 1, 1.0), "sign", 0.0
    if isinstance(element, Trit) and isinstance(element.threshold, float):
        return Integers(-1, 1, 1.0), "threshold", element.threshold
    return None
