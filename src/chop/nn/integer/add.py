"""Sums and differences of codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from torch import Tensor, nn

from chop.errors import ConfigError
from chop.nn.integer.base import NO_CALL, Call, IntegerOperator, IntegerOptions, check_width
from chop.nn.integer.edge import Edge, shift_between


class IntegerAdd(IntegerOperator):
    """Sum: y = a 2^s + b 2^t, where the finer of the two steps has no shift.

    The operator reads both inputs in one format, so that s = t = 0, unless the graph differs.

    Width: one bit more than the wider of the shifted inputs.

    Args:
        a: edge of the first input.
        b: edge of the second input.

    Raises:
        ConfigError: if the ratio of the steps is not a power of two.
    """

    sign: ClassVar[int] = 1

    def __init__(self, a: Edge, b: Edge) -> None:
        ratio = shift_between(a.scalar_step, b.scalar_step)
        if ratio is None:
            raise ConfigError(
                f"{type(self).__name__}: the ratio of the steps {a.scalar_step} and "
                f"{b.scalar_step} is not a power of two; use the same format for both inputs."
            )
        shifts = max(ratio, 0), max(-ratio, 0)
        ends_a = [end << shifts[0] for end in (a.low, a.high)]
        ends_b = sorted(self.sign * end << shifts[1] for end in (b.low, b.high))
        for low, high in (ends_a, ends_b):
            check_width(type(self).__name__, low, high)
        low, high = ends_a[0] + ends_b[0], ends_a[1] + ends_b[1]
        super().__init__(Edge.of(min(a.scalar_step, b.scalar_step), low, high))
        self.shifts = shifts

    @classmethod
    def from_quantized(
        cls,
        module: nn.Module | None,
        inputs: Sequence[Edge],
        options: IntegerOptions,
        call: Call = NO_CALL,
    ) -> Self:
        """See the base class."""
        if call.arguments.get("alpha", 1) != 1:
            raise ConfigError(f"{cls.__name__}: expected alpha=1, got {call.arguments['alpha']}.")
        a, b = inputs
        return cls(a, b)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Returns int64 in the broadcast shape of the inputs."""
        return (a << self.shifts[0]) + self.sign * (b << self.shifts[1])


class IntegerSub(IntegerAdd):
    """Difference: y = a 2^s - b 2^t."""

    sign: ClassVar[int] = -1
