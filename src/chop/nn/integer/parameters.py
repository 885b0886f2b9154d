"""Codes of parameters: weights and biases as integers with steps."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.formats import NumberFormat
from chop.formats.elements import Element, Fixed, Sign, Trit
from chop.formats.layout import Layout
from chop.formats.scaling import TINY, SharedExponent, Unscaled
from chop.nn.quantized import QuantizedOperator
from chop.nn.quantized.codes import parameter_codes, rounded_parameter
from chop.private.modules import own_parameters

WINDOW_BITS = 16
"""Maximum distance, in bits, between the largest and the smallest shared exponent of a parameter.
"""


class IntegerParameter(NamedTuple):
    """A rounded parameter: code k represents k step.

    Attributes:
        codes: int64, shape of the parameter; 0 for masked elements.
        step: float64 (), or (n,): one for each index of the first axis.
    """

    codes: Tensor
    step: Tensor

    @property
    def by_row(self) -> Tensor:
        """The step, reshaped to broadcast with the codes."""
        return self.step.view(-1, *[1] * (self.codes.dim() - 1)) if self.step.dim() else self.step

    @property
    def values(self) -> Tensor:
        """The values of the codes, float64."""
        return self.codes.double() * self.by_row


def integer_parameter(module: QuantizedOperator, operand: str) -> IntegerParameter:
    """Returns the codes of a quantized operator's weight or bias, with its rounding.

    Scales per tensor or per index of the first axis are steps. For blocks with shared powers of
    two, the step is the finest of them, and the codes of other blocks are shifted up. Blocks that
    are at least 2^16 times smaller than the largest are rounded to the step of the others.

    Raises:
        ConfigError: if the format has other elements, or scales that differ within an index.
    """
    if own_parameters(module).get(operand) is None:
        raise _refusal(module, operand, "is an argument of a function call; use a module")
    number_format = module.operand_format(operand)
    if not isinstance(number_format, NumberFormat) or not number_format.is_fitted:
        raise _refusal(module, operand, "is not fitted: calibrate first")
    layout, x = number_format.layout(), module.effective(operand).detach()
    unit = None if layout is None or layout.levels is not None else _unit(layout.element)
    if layout is None or unit is None or layout.has_zero_points:
        raise _refusal(module, operand, "has no integer form")
    values = rounded_parameter(module, operand)
    step = _step(layout.fitted(x), x, values) * unit
    if step.dim() and step.numel() == 1:
        step = step.reshape(())
    parameter = IntegerParameter(parameter_codes(module, operand, step).long(), step)
    has_window = isinstance(layout.scaling, SharedExponent)
    if not has_window and not torch.equal(parameter.values.to(values.dtype), values):
        raise _refusal(module, operand, "has scales that differ within an output")
    return parameter


def code_range(module: QuantizedOperator, operand: str) -> tuple[int, int] | None:
    """Returns the smallest and the largest code that a parameter's format has.

    Returns None for blocks with shared exponents, whose codes depend on the other blocks.
    """
    number_format = module.operand_format(operand)
    layout = number_format.layout() if isinstance(number_format, NumberFormat) else None
    if layout is None or isinstance(layout.scaling, SharedExponent):
        return None
    element = layout.element
    if isinstance(element, Fixed):
        return element.lowest_code, element.largest_code
    return -1, 1


def has_trained_step(module: QuantizedOperator, operand: str) -> bool:
    """Returns whether a parameter's step is a scale, which other numbers change."""
    number_format = module.operand_format(operand)
    layout = number_format.layout() if isinstance(number_format, NumberFormat) else None
    return layout is not None and not isinstance(layout.scaling, Unscaled | SharedExponent | None)


def _refusal(module: QuantizedOperator, operand: str, why: str) -> ConfigError:
    label = module.operand_format(operand).label
    return ConfigError(f"{type(module).__name__}.{operand}: {label} {why}.")


def _unit(element: Element) -> float | None:
    """Returns the step of elements before any scale; None if they are not integers."""
    if isinstance(element, Fixed):
        return 2.0**-element.frac_width
    is_whole = isinstance(element, Trit) or (isinstance(element, Sign) and not element.stochastic)
    return 1.0 if is_whole else None


def _step(layout: Layout, x: Tensor, values: Tensor) -> Tensor:
    """Returns the scale of the tensor, (), or of each index of the first axis, (n,); float64."""
    scaling = layout.scaling
    if scaling is None or isinstance(scaling, Unscaled):
        return torch.ones((), dtype=torch.float64)
    groups = layout.groups.split(x.double())
    group_scales = scaling.measure(groups, layout.counted(groups)).values
    scales = layout.groups.join(group_scales.expand(groups.shape), x.shape)
    if isinstance(scaling, SharedExponent):
        used = scales[values != 0]
        if not used.numel():
            return torch.ones((), dtype=torch.float64)
        return torch.maximum(used.min(), used.max() * 2.0**-WINDOW_BITS)
    # A channel of zeros may have the scale zero.
    rows = scales.reshape(scales.size(0), -1)[:, 0].clamp(min=TINY)
    return rows[0] if bool((rows == rows[0]).all()) else rows
