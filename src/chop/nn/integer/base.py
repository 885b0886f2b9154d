"""Base class, options and helpers of integer operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.nn.integer.edge import Edge, bit_width

MAX_BITS = 62
"""Maximum width of computed integers, in bits: sums of two fit int64."""
EXACT_FLOAT = 2**53
"""Bound below which integers are exact in float64."""


@dataclass(frozen=True)
class IntegerOptions:
    """Integer widths of operators.

    Attributes:
        internal_bits: widths in softmax, LayerNorm and RMSNorm: "small", as in a circuit; or
            "exact", the maximum of int64, close to the float operator.
        weights: numbers for which the bounds of results hold: "fixed", those of the model; or
            "loadable", all codes of the formats of weights and biases, and norms and scales within
            a margin.
        circuit: operators of a circuit with loadable weights by path, whose steps and shifts the
            operators at the same paths get; empty to choose them.
    """

    internal_bits: Literal["small", "exact"] = "small"
    weights: Literal["fixed", "loadable"] = "fixed"
    circuit: Mapping[str, nn.Module] = field(default_factory=dict)

    @property
    def is_loadable(self) -> bool:
        """True if trained numbers are written at run time."""
        return self.weights == "loadable"


@dataclass(frozen=True)
class Call:
    """Call of an operator in a graph of fixed shapes.

    Attributes:
        shapes: shapes of the inputs, in the order of their edges.
        arguments: other arguments of the call, by the function's names; empty for a module, whose
            settings are attributes.
        like: operator of a circuit whose step and shift the new operator gets, see
            `IntegerOptions`; None to choose them.
    """

    shapes: Sequence[Sequence[int]] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    like: nn.Module | None = None

    def setting(self, module: nn.Module | None, name: str, default: Any) -> Any:
        """Returns a setting of the operator: an argument of the call, or an attribute of the
        module.
        """
        return self.arguments.get(name, getattr(module, name, default))


NO_CALL = Call()
"""Call of operators that need neither shapes nor further arguments."""


class IntegerOperator(nn.Module):
    """Operator on codes: int64 tensors in, an int64 tensor out, without hidden rounding.

    State consists of int64 buffers and plain numbers, which copies and exports include. Each class
    documents its formula and the width of its integers, which must not exceed `MAX_BITS`.

    Args:
        out: edge of the result; its bounds are derived from those of the inputs.

    Raises:
        ConfigError: if the codes can become too wide.
    """

    reads_exact: ClassVar[bool] = False
    """True if the exact codes of any operator are accepted, so that the input needs no format."""
    fixed_because: ClassVar[str] = "its numbers are not trained"
    """Reason for which memories of the operator are fixed in a circuit with loadable weights."""
    is_loadable: bool = False
    """True if the numbers in the operator's memories are written at run time."""
    circuit_numbers: str = ""
    """Buffer that loses bits in the step of a circuit, see `Call.like`; empty for none."""
    out_is_trained: bool = False

    def __init__(self, out: Edge) -> None:
        super().__init__()
        check_width(type(self).__name__, out.low, out.high)
        steps = out.step.tolist()
        self.out_step = tuple(steps) if isinstance(steps, list) else steps
        self.out_axis, self.out_divisor = out.axis, out.divisor
        self.out_low, self.out_high = out.low, out.high
        self.out_is_trained = out.is_trained

    @property
    def out(self) -> Edge:
        """The edge of the result."""
        step = torch.tensor(self.out_step, dtype=torch.float64)
        ends = self.out_low, self.out_high
        return Edge(step, self.out_axis, *ends, self.out_divisor, self.out_is_trained)

    @classmethod
    def from_quantized(
        cls,
        module: nn.Module | None,
        inputs: Sequence[Edge],
        options: IntegerOptions,
        call: Call = NO_CALL,
    ) -> Self:
        """Returns the integer form of a quantized operator.

        Args:
            module: the operator, unpacked and with frozen scales; None for a call of a function
                without a quantized form.
            inputs: edges as the operator reads them, rounded to its `data_in`.
            options: widths inside.
            call: shapes and further arguments.
        Raises:
            ConfigError: if its formats have no integer form, or its integers can become too wide.
        """
        raise NotImplementedError(f"{cls.__name__} has no quantized operator to convert.")

    def extra_repr(self) -> str:
        """Returns the width and the bounds of the codes."""
        return f"{bit_width(self.out_low, self.out_high)} bits, {self.out_low} to {self.out_high}"


def check_loadable(where: str, name: str, values: Tensor, limit: int) -> None:
    """Raises ConfigError if the magnitude of a loadable number exceeds the limit of its circuit."""
    largest = int(values.abs().max())
    if largest > limit:
        raise ConfigError(
            f"{where}: the largest {name} is {largest / limit:.2g} times what the circuit loads: "
            f"train with a smaller {name}, or emit a circuit for this model."
        )


def check_width(where: str, low: int, high: int) -> None:
    """Raises ConfigError if integers from `low` to `high` need more than `MAX_BITS`."""
    if bit_width(low, high) > MAX_BITS:
        raise ConfigError(
            f"{where}: integers from {low} to {high} need {bit_width(low, high)} bits, more than "
            f"{MAX_BITS}; choose narrower formats."
        )


def matmul(left: Tensor, right: Tensor, bound: int) -> Tensor:
    """Computes `left @ right` of int64 tensors exactly.

    Args:
        left: (..., n, k).
        right: (..., k, m).
        bound: upper bound of the sums of magnitudes.
    """
    # float64 is many times as fast as int64, and exact while no sum reaches 2^53.
    if bound < EXACT_FLOAT:
        return (left.double() @ right.double()).long()
    return left @ right


def extreme_products(a: Edge, b: Edge) -> tuple[int, int]:
    """Returns the smallest and the largest product of a code of `a` and one of `b`."""
    products = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return min(products), max(products)
