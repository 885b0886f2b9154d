"""Codes of parameters: the integers that exporters and integer operators store."""

from __future__ import annotations

import torch
from torch import Tensor

from chop.nn.quantized.base import QuantizedOperator


@torch.no_grad()
def rounded_parameter(operator: QuantizedOperator, operand: str) -> Tensor:
    """Returns a parameter, masked and rounded to its format."""
    parameter: Tensor = getattr(operator, operand)
    return operator.quantize(operand, parameter).detach()


def parameter_codes(operator: QuantizedOperator, operand: str, scale: Tensor) -> Tensor:
    """Returns the codes k of a rounded parameter, k scale; 0 for masked elements.

    Args:
        operator: with frozen scales; see `freeze_scales`.
        operand: `weight` or `bias`.
        scale: scale of the parameter's format: (), or (n,) for each index of the first axis.
    Returns: float64, of the parameter's shape: integers.
    """
    rounded = rounded_parameter(operator, operand).double()
    steps = scale.double()
    steps = steps.view(-1, *[1] * (rounded.dim() - 1)) if steps.dim() else steps
    return (rounded / steps).round()


def codes_in_products(bias: Tensor, product_scale: Tensor) -> Tensor | None:
    """Returns the codes of a bias in multiples of a product of scales; None beyond 32 bits.

    Args:
        bias: (n,): its rounded values.
        product_scale: () or (n,): scale of the inputs times that of the weight.
    Returns: int32 (n,).
    """
    codes = (bias.detach().double() / product_scale.double()).round()
    if codes.abs().max() > torch.iinfo(torch.int32).max:
        return None
    return codes.to(torch.int32)
