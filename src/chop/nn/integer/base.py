"""Integer operators: what they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.nn.integer.edge import Edge, bit_width

MAX_BITS = 62
"""Of any integer that is computed: sums of two fit int64."""
EXACT_FLOAT = 2**53
"""Whole numbers below are exact in float64."""


@dataclass(frozen=True)
class IntegerOptions:
    """How wide integers are inside operators that approximate.

    Attributes:
        internal_bits: of softmax, LayerNorm and RMSNorm: "small", what a circuit has; or "exact",
            as many as int64 allows, close to the operator in float.
    """

    internal_bits: Literal["small", "exact"] = "small"


@dataclass(frozen=True)
class Call:
    """How a graph of fixed shapes calls an operator.

    Attributes:
        shapes: of the inputs, in the order of their edges.
        arguments: those of the call that are no inputs, by the function's names; none of a
            module, which has its settings as attributes.
    """

    shapes: Sequence[Sequence[int]] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def setting(self, module: nn.Module | None, name: str, default: Any) -> Any:
        """A setting of the operator: an argument of the call, or an attribute of the module."""
        return self.arguments.get(name, getattr(module, name, default))


NO_CALL = Call()
"""Of operators that need neither shapes nor further arguments."""


class IntegerOperator(nn.Module):
    """Operator on codes: int64 tensors in, an int64 tensor out, nothing is rounded in secret.

    State is int64 buffers and plain numbers, so that copies and exports have it. Each class states
    its formula and how wide its integers can become; they are refused beyond `MAX_BITS`.

    Args:
        out: what `forward` returns; its bounds are proven from those of the inputs.

    Raises:
        ConfigError: the codes can become too wide.
    """

    def __init__(self, out: Edge) -> None:
        super().__init__()
        check_width(type(self).__name__, out.low, out.high)
        steps = out.step.tolist()
        self.out_step = tuple(steps) if isinstance(steps, list) else steps
        self.out_axis, self.out_divisor = out.axis, out.divisor
        self.out_low, self.out_high = out.low, out.high

    @property
    def out(self) -> Edge:
        """What `forward` returns."""
        step = torch.tensor(self.out_step, dtype=torch.float64)
        return Edge(step, self.out_axis, self.out_low, self.out_high, self.out_divisor)

    @classmethod
    def from_quantized(
        cls,
        module: nn.Module | None,
        inputs: Sequence[Edge],
        options: IntegerOptions,
        call: Call = NO_CALL,
    ) -> Self:
        """The integer form of a quantized operator.

        Args:
            module: the operator, unpacked and with frozen scales; None where a graph calls a
                function that has no quantized form.
            inputs: the edges as the operator reads them, rounded to its `data_in`.
            options: widths inside.
            call: shapes and further arguments.
        Raises:
            ConfigError: its formats have no integer form, or its integers can become too wide.
        """
        raise NotImplementedError(f"{cls.__name__} is no form of a quantized operator.")

    def extra_repr(self) -> str:
        """The width and the bounds of the codes."""
        return f"{bit_width(self.out_low, self.out_high)} bits, {self.out_low} to {self.out_high}"


def check_width(where: str, low: int, high: int) -> None:
    """Raises ConfigError where integers from `low` to `high` need more than `MAX_BITS`."""
    if bit_width(low, high) > MAX_BITS:
        raise ConfigError(
            f"{where}: integers from {low} to {high} need {bit_width(low, high)} bits, of at most "
            f"{MAX_BITS}; choose narrower formats."
        )


def matmul(left: Tensor, right: Tensor, bound: int) -> Tensor:
    """`left @ right` of int64 tensors, exact.

    float64 is many times as fast, and exact while no sum reaches 2^53.

    Args:
        left: (..., n, k).
        right: (..., k, m).
        bound: no sum of magnitudes is larger.
    """
    if bound < EXACT_FLOAT:
        return (left.double() @ right.double()).long()
    return left @ right


def extreme_products(a: Edge, b: Edge) -> tuple[int, int]:
    """The smallest and the largest product of a code of `a` and one of `b`."""
    products = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return min(products), max(products)
