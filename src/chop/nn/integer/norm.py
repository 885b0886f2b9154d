"""LayerNorm and RMSNorm on codes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.nn.integer.base import (
    MAX_BITS,
    NO_CALL,
    Call,
    IntegerOptions,
    check_width,
)
from chop.nn.integer.edge import Edge
from chop.nn.integer.parameters import IntegerParameter, integer_parameter
from chop.nn.integer.rounding import round_shift, saturate
from chop.nn.integer.weighted import (
    Aligned,
    CodeRanges,
    ParameterOperator,
    align_bias,
    get_shift,
    has_trained_steps,
    parameter_ranges,
)
from chop.nn.quantized import QuantizedOperator

FRACTION_BITS = {"small": 16, "exact": 30}
"""Maximum F."""
ROOT_BITS = {"small": 16, "exact": 31}
"""Maximum k."""


def integer_sqrt(v: Tensor) -> Tensor:
    """Returns floor(sqrt(v)) of int64 numbers from 0 to 2^62.

    >>> integer_sqrt(torch.tensor([0, 15, 16, 2**62 - 1]))
    tensor([         0,          3,          4, 2147483647])
    """
    # The root in float64 is off by at most one.
    root = v.double().sqrt().long()
    root -= (root * root > v).long()
    return root + ((root + 1) * (root + 1) <= v).long()


class NormBits(NamedTuple):
    """Fractional bits inside a normalization; see `IntegerNorm` for the letters.

    Attributes:
        root: k, of the root.
        reciprocal: K, of the reciprocal.
        fraction: F, of a normalized value.
        eps: EPS.
        limit: isqrt(C) + 1, a strict upper bound of normalized values.
    """

    root: int
    reciprocal: int
    fraction: int
    eps: int
    limit: int

    @classmethod
    def of(
        cls, read: Edge, count: int, eps: float, is_centered: bool, options: IntegerOptions
    ) -> NormBits:
        """Returns the largest bits that int64, or the mode, allows.

        Args:
            read: edge of the input.
            count: C.
            eps: eps of the operator.
            is_centered: whether the mean is subtracted.
            options: the mode.
        Raises:
            ConfigError: if C Q is too wide.
        """
        mode, largest = options.internal_bits, max(-read.low, read.high)
        check_width("IntegerNorm", 0, (count * largest) ** 2)
        # V = C Q - S^2 is at most (C (high - low) / 2)^2.
        spread = read.high - read.low if is_centered else 2 * largest
        squares = (count * spread) ** 2 // 4
        root = min(ROOT_BITS[mode], (MAX_BITS - 1 - squares.bit_length()) // 2)
        scaled_eps = max(round(eps * (count / read.scalar_step) ** 2 * 4.0**root), 1)
        radicand = (squares << 2 * root) + scaled_eps
        check_width("IntegerNorm", 0, radicand)
        limit = math.isqrt(count) + 1
        reciprocal = min(MAX_BITS - 1, MAX_BITS - 2 + root - limit.bit_length())
        if mode == "small":
            reciprocal = min(reciprocal, math.isqrt(radicand).bit_length() + ROOT_BITS[mode])
        fraction = min(FRACTION_BITS[mode], reciprocal - root)
        return cls(root, reciprocal, fraction, scaled_eps, limit)


class IntegerNorm(ParameterOperator):
    """Normalization over the last C elements: y = u G 2^s + B.

    S = sum x, or 0 for RMSNorm; Q = sum x^2; V = C Q - S^2; D = isqrt(V 2^2k + EPS);
    R = min(floor(2^K / D), 2^(K-k)); u = round_shift((C x - S) R, K - k - F).

    That is (x - mean) / sqrt(variance + eps) with F fractional bits: the mean is multiplied by C,
    and variance and eps by C^2 / step^2, which makes them integers. EPS is in units of 2^-2k, and
    at least 1. In a constant row C x = S: u is zero for any R, and there is no division by
    zero. Scale and shift are exact; the reader rounds the result.

    Width: V is at most (C (high - low) / 2)^2. k is 16 ("small"), and in both modes
    small enough that V 2^2k has at most 61 bits. K is 16 more than the bits of D, or up to 61
    ("exact"). |C x - S| is at most sqrt((C - 1) V), so that |u| is below (isqrt(C) + 1) 2^F, where
    it saturates, and (C x - S) R below 2^(K-k+1) sqrt(C). F is 16 ("small"), or at most 30. G and B
    are bounded by their codes, or by `ranges` if they are loadable.

    Args:
        shape: shape of the last dimensions; C elements.
        affine: G, B and s.
        step: step of the result.
        bits: k, K, F and EPS.
        ranges: codes that loadable parameters can have; None for fixed ones.
        is_trained: as in `Edge`.

    Source: Ba, Kiros and Hinton 2016 (LayerNorm), arXiv:1607.06450, equation 4; Zhang and Sennrich
    2019 (RMSNorm), arXiv:1910.07467, equation 4.
    """

    is_centered: ClassVar[bool]

    def __init__(
        self,
        shape: Sequence[int],
        affine: Aligned,
        step: float | Tensor,
        bits: NormBits,
        ranges: CodeRanges | None = None,
        is_trained: bool = False,
    ) -> None:
        weight, bias = affine.weight.codes, affine.bias
        gains, shifts = weight.tolist(), bias.tolist()
        if ranges is not None:
            gains = [min(ranges.weight_low, -ranges.weight_high)] * 2
            shifts = [ranges.bias_low, ranges.bias_high]
        reach = [bits.limit * abs(g) << bits.fraction + affine.shift for g in gains]
        pairs = list(zip(reach, shifts, strict=True))
        low, high = min(b - r for r, b in pairs), max(b + r for r, b in pairs)
        steps = torch.as_tensor(step, dtype=torch.float64)
        super().__init__(Edge(steps, -1, low, high, is_trained=is_trained))
        self.take_ranges(ranges)
        self.register_buffer("weight", weight.reshape(tuple(shape)))
        self.register_buffer("bias", bias.reshape(tuple(shape)))
        self.count, self.dims = weight.numel(), tuple(range(-len(shape), 0))
        self.shift, self.root, self.reciprocal = affine.shift, bits.root, bits.reciprocal
        self.fraction, self.eps = bits.fraction, bits.eps
        self.limit = bits.limit << bits.fraction

    @classmethod
    def from_quantized(
        cls,
        module: nn.Module | None,
        inputs: Sequence[Edge],
        options: IntegerOptions,
        call: Call = NO_CALL,
    ) -> Self:
        """See the base class."""
        (read,), layer = inputs, _layer(module)
        shape = tuple(layer.normalized_shape)
        eps = torch.finfo(torch.float32).eps if layer.eps is None else layer.eps
        bits = NormBits.of(read, math.prod(shape), eps, cls.is_centered, options)
        step = 2.0**-bits.fraction
        weight, bias = _flat(layer, "weight", shape), _flat(layer, "bias", shape)
        is_loadable = options.is_loadable and weight is not None
        is_trained = is_loadable and has_trained_steps(layer)
        if weight is None:
            weight = IntegerParameter(torch.ones(math.prod(shape)).long(), torch.ones(()).double())
        if bias is None:
            affine = Aligned(weight, torch.zeros_like(weight.codes))
        else:
            given = get_shift(call.like) if is_trained else None
            affine = align_bias(cls.__name__, step, weight, bias, is_trained, given)
        ranges = parameter_ranges(layer, affine) if is_loadable else None
        steps = step * affine.weight.step * 2.0**-affine.shift
        return cls(shape, affine, steps, bits, ranges, is_trained)

    def forward(self, codes: Tensor) -> Tensor:
        """Returns int64 in the shape of `codes`."""
        total = codes.sum(self.dims, keepdim=True) if self.is_centered else torch.tensor(0)
        squares = (codes * codes).sum(self.dims, keepdim=True)
        variance = self.count * squares - total * total
        root = integer_sqrt((variance << 2 * self.root) + self.eps)
        reciprocal = torch.div(1 << self.reciprocal, root, rounding_mode="floor")
        # In a constant row only EPS is left under the root, and x - mean is zero for any R.
        reciprocal = reciprocal.clamp(max=1 << self.reciprocal - self.root)
        centered = self.count * codes - total
        u = round_shift(centered * reciprocal, self.reciprocal - self.root - self.fraction)
        u = saturate(u, -self.limit, self.limit)
        return (u * self.weight << self.shift) + self.bias


class IntegerLayerNorm(IntegerNorm):
    """LayerNorm: (x - mean) / sqrt(variance + eps) G + B."""

    is_centered: ClassVar[bool] = True


class IntegerRMSNorm(IntegerNorm):
    """RMSNorm: x / sqrt(mean of x^2 + eps) G."""

    is_centered: ClassVar[bool] = False


class IntegerGroupNorm(IntegerLayerNorm):
    """Normalization of a group of channels, as a row, without the scale and shift of channels."""

    @classmethod
    def from_quantized(
        cls,
        module: nn.Module | None,
        inputs: Sequence[Edge],
        options: IntegerOptions,
        call: Call = NO_CALL,
    ) -> Self:
        """See the base class; `call` has the shape of the rows."""
        (read,), layer, count = inputs, module, call.shapes[0][-1]
        assert isinstance(layer, nn.GroupNorm)
        bits = NormBits.of(read, count, layer.eps, cls.is_centered, options)
        ones = torch.ones(count, dtype=torch.int64)
        weight = IntegerParameter(ones, torch.ones((), dtype=torch.float64))
        return cls((count,), Aligned(weight, torch.zeros_like(ones)), 2.0**-bits.fraction, bits)


def _layer(module: nn.Module | None) -> Any:
    if isinstance(module, QuantizedOperator) and module.function is None:
        return module
    raise ConfigError("normalization by a function call has no integer form; use a module.")


def _flat(layer: Any, operand: str, shape: Sequence[int]) -> IntegerParameter | None:
    """Returns a flattened parameter; None if the layer has none."""
    if getattr(layer, operand, None) is None:
        return None
    parameter = integer_parameter(layer, operand)
    if parameter.step.dim() and len(shape) > 1:
        raise ConfigError(f"{type(layer).__name__}.{operand}: expected one scale.")
    return parameter._replace(codes=parameter.codes.flatten())
