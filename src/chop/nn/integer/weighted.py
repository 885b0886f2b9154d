"""Layers with weights: integer weights and biases, and bounds of their sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from chop.nn.integer.base import (
    NO_CALL,
    Call,
    IntegerOperator,
    IntegerOptions,
    check_loadable,
    check_width,
)
from chop.nn.integer.edge import Edge, shift_between
from chop.nn.integer.parameters import (
    IntegerParameter,
    code_range,
    has_trained_step,
    integer_parameter,
)
from chop.nn.quantized import QuantizedOperator
from chop.nn.quantized.codes import codes_in_products

LARGEST_BIAS = 2**31 - 2
"""Largest bias in multiples of a product's step: int32, minus a margin for rounding of the step."""
BIAS_PLACES = 8
"""Fractional bits of a bias whose step has no common power of two with the product's."""


class CodeRanges(NamedTuple):
    """Codes that weights and biases written at run time can have.

    Attributes:
        weight_low: smallest weight.
        weight_high: largest weight.
        bias_low: smallest bias, in the step of the accumulator.
        bias_high: largest bias.
    """

    weight_low: int
    weight_high: int
    bias_low: int
    bias_high: int


class Weighted(NamedTuple):
    """Integers of a layer: acc = (sum x w) 2^shift + b.

    Attributes:
        weight: w, int64, outputs along the first axis.
        bias: b, int64 (outputs,).
        shift: extra fractional bits of the bias over the products.
        bound: upper bound of the sums of products' magnitudes.
        out: edge of the accumulator.
        ranges: codes for which the bounds hold; None for the codes above only.
    """

    weight: Tensor
    bias: Tensor
    shift: int
    bound: int
    out: Edge
    ranges: CodeRanges | None = None


class ParameterOperator(IntegerOperator):
    """Operator with weights and biases, which may be loadable."""

    weight: Tensor
    bias: Tensor
    shift: int
    code_limits: tuple[int, int, int, int] | None = None

    def take_ranges(self, ranges: CodeRanges | None) -> None:
        """Makes the parameters loadable, within ranges; None for fixed ones."""
        self.is_loadable = ranges is not None
        if ranges is not None:
            weight_low, weight_high, bias_low, bias_high = ranges
            self.code_limits = weight_low, weight_high, bias_low, bias_high

    @property
    def ranges(self) -> CodeRanges | None:
        """Codes that the parameters can have if they are loadable; None if they are fixed."""
        return None if self.code_limits is None else CodeRanges(*self.code_limits)


class WeightedOperator(ParameterOperator):
    """Sum of products of codes and weights: acc = (sum x w) 2^shift + b.

    If the ratio of the product's step and the bias's step is a power of two, the accumulator has
    the finer of them: a finer bias shifts the sum, a coarser one is shifted. Nothing is rounded.
    Otherwise the bias is rounded to a multiple of the product's step and has to fit int32. A
    channel whose products are too fine for that gets coarser weights. Products coarser than 2^-8 of
    the bias's step, such as those of ternary weights, are shifted up to that. A channel of zeros
    has the coarsest step, so that a multiplier shared by all channels can represent its ratio.

    Width: each output lies between the sums over its weights of the smaller and of the larger of
    w low and w high, shifted, plus b: at most the bits of input and weight, ceil(log2 K) for K
    products, and one for the bias. Loadable weights (`IntegerOptions`) are bounded by `ranges`
    instead.

    Args:
        whole: weights, bias and accumulator.

    Source: Jacob et al. 2018, arXiv:1712.05877, equations 7 to 9.
    """

    axis: ClassVar[int] = -1
    fixed_because = "weights in blocks with shared exponents are fixed; use a format such as 8.auto"

    def __init__(self, whole: Weighted) -> None:
        super().__init__(whole.out)
        self.take_ranges(whole.ranges)
        self.register_buffer("weight", whole.weight)
        self.register_buffer("bias", whole.out.by_channel(whole.bias))
        self.shift, self.bound = whole.shift, whole.bound

    @classmethod
    def from_quantized(
        cls,
        module: nn.Module | None,
        inputs: Sequence[Edge],
        options: IntegerOptions,
        call: Call = NO_CALL,
    ) -> Self:
        """See the base class."""
        assert isinstance(module, QuantizedOperator)
        operator = cls(weighted(module, inputs[0], cls.axis, cls.arranged, options, call.like))
        operator.take_settings(module)
        return operator

    @classmethod
    def arranged(cls, module: nn.Module, weight: IntegerParameter) -> IntegerParameter:
        """Returns the weights with the outputs along the first axis."""
        return weight

    def take_settings(self, module: nn.Module) -> None:
        """Takes over further settings of the layer, such as strides."""


def weighted(
    module: QuantizedOperator,
    read: Edge,
    axis: int,
    arranged: Callable[[nn.Module, IntegerParameter], IntegerParameter],
    options: IntegerOptions,
    like: nn.Module | None = None,
) -> Weighted:
    """Returns the integers of a layer that reads an edge of one step.

    Args:
        module: with `weight` and `bias`.
        read: edge of its input; 0 is among the codes, which padding needs.
        axis: axis of the outputs in its result, from the end.
        arranged: returns its weights with the outputs along the first axis.
        options: whether the bounds are those of any weights.
        like: operator whose shift is taken, see `Call`.
    """
    weight = arranged(module, integer_parameter(module, "weight"))
    is_trained = options.is_loadable and has_trained_steps(module)
    if getattr(module, "bias", None) is None:
        aligned = Aligned(weight, torch.zeros(weight.codes.size(0), dtype=torch.int64))
    else:
        bias = integer_parameter(module, "bias")
        name, given = type(module).__name__, get_shift(like) if is_trained else None
        aligned = align_bias(name, read.scalar_step, weight, bias, is_trained, given)
    ranges = parameter_ranges(module, aligned) if options.is_loadable else None
    return bounded(aligned, read, axis, ranges, is_trained)


def bounded(
    aligned: Aligned, read: Edge, axis: int, ranges: CodeRanges | None, is_trained: bool = False
) -> Weighted:
    """Returns the integers of a layer with the bounds of its sums.

    Args:
        aligned: weights and bias.
        read: see `weighted`.
        axis: see `weighted`.
        ranges: codes of loadable weights and biases; None for the bounds of these ones.
        is_trained: as in `Edge`.
    """
    weight, bias, shift, _ = aligned
    step = read.scalar_step * weight.step * 2.0**-shift
    low, high = min(read.low, 0), max(read.high, 0)
    if ranges is None:
        bound, low, high = _bounds(weight.codes, bias, shift, low, high)
    else:
        bound, low, high = _bounds_of_any(ranges, weight.codes[0].numel(), shift, low, high)
    edge = Edge(step, axis, low, high, is_trained=is_trained)
    return Weighted(weight.codes, bias, shift, bound, edge, ranges)


def has_trained_steps(module: QuantizedOperator) -> bool:
    """Returns whether the steps of a layer's weights or biases are scales."""
    given = [name for name in ("weight", "bias") if getattr(module, name, None) is not None]
    return any(has_trained_step(module, name) for name in given)


def get_shift(like: nn.Module | None) -> int | None:
    """Returns the shift of an operator of a circuit; None without one."""
    return like.shift if isinstance(like, ParameterOperator) else None


class Aligned(NamedTuple):
    """A bias in the step of an accumulator.

    Attributes:
        weight: the weights.
        bias: int64 (outputs,).
        shift: extra fractional bits of the accumulator over products with the weights.
        zeros: bits that the codes of the bias are shifted by; None if the bias is rounded to a
            multiple of the products' steps.
    """

    weight: IntegerParameter
    bias: Tensor
    shift: int = 0
    zeros: int | None = None


def align_bias(
    where: str,
    step: float,
    weight: IntegerParameter,
    bias: IntegerParameter,
    is_trained: bool = False,
    shift: int | None = None,
) -> Aligned:
    """Aligns a bias with products, see `WeightedOperator`.

    Args:
        where: name of the operator, for messages.
        step: step of the inputs that the weights multiply.
        weight: see `integer_parameter`.
        bias: see `integer_parameter`.
        is_trained: steps are scales that other weights change. The bias is rounded then, even if
            the ratio of the steps is a power of two.
        shift: shift of a rounded bias; None to choose it.
    """
    finer = None
    if not (is_trained or weight.step.dim() or bias.step.dim()):
        finer = shift_between(step * weight.step.item(), bias.step.item())
    if finer is None:
        return _bias_in_steps(where, weight, bias, step, shift)
    zeros = max(-finer, 0)
    return Aligned(weight, _shifted(where, bias.codes, zeros), max(finer, 0), zeros)


def _shifted(where: str, codes: Tensor, zeros: int) -> Tensor:
    """Appends zero bits to codes."""
    check_width(f"{where}.bias", int(codes.min()) << zeros, int(codes.max()) << zeros)
    return codes << zeros


def _bias_in_steps(
    where: str, weight: IntegerParameter, bias: IntegerParameter, step: float, given: int | None
) -> Aligned:
    """Returns the bias in multiples of the products' steps, and weights coarse enough for it."""
    values, coarsest = bias.values, step * weight.step.max()
    # Coarse products are shifted up until the bias has enough bits, within int32.
    places = torch.log2(coarsest / bias.step.min()).ceil().item() + BIAS_PLACES
    room = torch.log2(LARGEST_BIAS * coarsest / values.abs().max()).floor().item()
    shift = max(int(min(places, room)), 0) if given is None else given
    # The smallest weight step of each channel with which its bias fits int32.
    least = values.abs() / (step * LARGEST_BIAS) * 2.0**shift
    is_dead = weight.codes.reshape(len(values), -1).eq(0).all(1)
    if given:  # with another shift, the weights would keep their steps
        in_steps = values.masked_fill(is_dead, 0) / (step * weight.step * 2.0**-shift)
        check_loadable(where, "bias", in_steps, LARGEST_BIAS + 1)
    least = least.masked_fill(is_dead, weight.step.max().item())
    if bool((least > weight.step).any()):
        coarse = torch.maximum(least, weight.step.expand_as(least))
        wide = weight._replace(step=coarse)
        weight = wide._replace(codes=(weight.values / wide.by_row).round().long())
    codes = codes_in_products(values, step * weight.step * 2.0**-shift)
    assert codes is not None
    return Aligned(weight, codes.long(), shift)


def parameter_ranges(module: QuantizedOperator, aligned: Aligned) -> CodeRanges | None:
    """Returns the codes of any weights and biases; None for blocks with shared exponents."""
    weights = code_range(module, "weight")
    if getattr(module, "bias", None) is None:
        biases: tuple[int, int] | None = (0, 0)
    elif aligned.zeros is None:
        biases = -LARGEST_BIAS - 1, LARGEST_BIAS + 1
    else:
        codes = code_range(module, "bias")
        biases = codes and (codes[0] << aligned.zeros, codes[1] << aligned.zeros)
    return None if weights is None or biases is None else CodeRanges(*weights, *biases)


def _bounds_of_any(
    ranges: CodeRanges, count: int, shift: int, low: int, high: int
) -> tuple[int, int, int]:
    """Returns the bounds of `_bounds` for `count` products of any weights."""
    weights = ranges.weight_low, ranges.weight_high
    products = [weight * code for weight in weights for code in (low, high)]
    lowest = (count * min(products) << shift) + ranges.bias_low
    highest = (count * max(products) << shift) + ranges.bias_high
    return count * max(map(abs, products)), lowest, highest


def _bounds(weight: Tensor, bias: Tensor, shift: int, low: int, high: int) -> tuple[int, int, int]:
    """Returns the largest sum of magnitudes, and the smallest and largest accumulator."""
    rows = weight.reshape(weight.size(0), -1)
    ups, downs = rows.clamp(min=0).sum(1).tolist(), rows.clamp(max=0).sum(1).tolist()
    sums = list(zip(ups, downs, bias.tolist(), strict=True))
    bound = max(((up - down) * max(-low, high) for up, down, _ in sums), default=0)
    lows = [((up * low + down * high) << shift) + b for up, down, b in sums]
    highs = [((up * high + down * low) << shift) + b for up, down, b in sums]
    return bound, min(lows, default=0), max(highs, default=0)
