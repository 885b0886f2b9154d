"""Quant graph: QONNX nodes Quant and BipolarQuant on float values in place of number formats."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from chop.export.onnx.grids import get_scale
from chop.export.onnx.operators import qonnx_bipolar, qonnx_quant
from chop.export.onnx.qdq import LINEAR, integer_form
from chop.export.onnx.stand_ins import StandIns, is_parameter, plan_stand_ins
from chop.export.onnx.target import in_float32
from chop.export.refusals import refuse
from chop.formats import Gradient, StandIn
from chop.formats.elements import Element, Fixed, Sign, Trit
from chop.formats.layout import Layout
from chop.ir.graph import MaseGraph
from chop.kernels.integers import Integers, one_scale
from chop.kernels.plan import get_row
from chop.nn.quantized import QuantizedOperator, QuantLinear
from chop.nn.quantized.codes import rounded_parameter

WHERE = "qonnx"
WIDEST = 32
HALF = 0.5
"""Threshold of nodes: they round halves to 0, the even number, like a `Trit`."""
WAY_OUT = (
    "Choose integer (calibrated), scale_integer (static scales for activations; granularity "
    "tensor, or channel for parameters), binary, or ternary for weights. The onnx target writes "
    "other formats as floats."
)


class Steps(NamedTuple):
    """Elements that a node rounds to: k `step` for integers `low` <= k <= `high`.

    Attributes:
        low: smallest k.
        high: largest k.
        step: distance between two elements.
        floors: rounds down instead of to nearest.
        is_bipolar: excludes 0 and rounds by the sign.
    """

    low: int
    high: int
    step: float = 1.0
    floors: bool = False
    is_bipolar: bool = False


@dataclass(eq=False)
class Quant(StandIn):
    """Quant or BipolarQuant node.

    Attributes:
        steps: elements that it rounds to, before the scale.
        scale: float32 (), or a shape like (n, 1) for each index of a parameter's axis.
        values: rounded values of a parameter, which the node does not change; None for activations.
    """

    steps: Steps
    scale: Tensor
    values: Tensor | None = None

    def __call__(self, x: Tensor, gradient: Gradient = "identity") -> Tensor:
        """Returns the tensor or parameter after the node."""
        given, (low, high, _, floors, is_bipolar) = self.values, self.steps
        given = x if given is None else given
        if is_bipolar:
            rounded: Tensor = qonnx_bipolar(given, self.scale)
        else:
            rounded = qonnx_quant(given, self.scale, low, high, floors)
        return rounded

    @property
    def transposed(self) -> Quant:
        """Returns the node for the transposed matrix."""
        assert self.values is not None
        scale = self.scale.T if self.scale.dim() else self.scale
        return replace(self, scale=scale.contiguous(), values=self.values.T.contiguous())


class _Linear(nn.Module):
    """Linear layer as MatMul and Add, which readers of QONNX expect.

    Args:
        layer: layer with stand-ins in its spec.
    """

    def __init__(self, layer: QuantLinear) -> None:
        super().__init__()
        assert isinstance(layer.spec.weight, Quant)
        self.spec, self.bias = layer.spec, layer.bias
        self.weight_io = layer.spec.weight.transposed

    def forward(self, input: Tensor) -> Tensor:
        y = self.spec.data_in(input) @ self.weight_io(input)
        y = y if self.bias is None else y + self.spec.bias(self.bias)
        return self.spec.data_out(y)


def quant_graph(mg: MaseGraph) -> MaseGraph:
    """Returns a copy of a graph with a QONNX node for every rounding.

    Args:
        mg: graph; it is not changed.

    Raises:
        ConfigError: if QONNX lacks formats, which are listed by module; see also `plan_stand_ins`.
    """
    planned = plan_stand_ins(mg, _quant, WHERE)
    refuse(WHERE, _reasons(planned), WAY_OUT)
    planned.put()
    for node in planned.mg.nodes:
        layer: Any = planned.mg.get_module(node)
        if integer_form(planned.mg, node) == LINEAR and isinstance(layer.spec.weight, Quant):
            planned.mg.replace(node, _Linear(layer))
    return planned.mg


def refusals(mg: MaseGraph) -> dict[str, str]:
    """Returns why modules have no QONNX form, by path; see `chop.export.target.Target`."""
    return _reasons(plan_stand_ins(in_float32(mg)[0], _quant, WHERE))


def _reasons(planned: StandIns) -> dict[str, str]:
    labels: dict[str, list[str]] = defaultdict(list)
    for path, operand in planned.missing:
        label = getattr(planned.steps[path].spec, operand).label
        labels[path or "model"].append(f"{operand} ({label})")
    return {path: f"QONNX has no node for its {', '.join(x)}" for path, x in labels.items()}


def _quant(step: QuantizedOperator, operand: str) -> Quant | None:
    number_format = step.spec.number_format(operand)
    layout = number_format.layout() if number_format.is_fitted else None
    if layout is None or layout.levels is not None or layout.has_zero_points:
        return None
    if is_parameter(step, operand):
        return _parameter_node(layout, step, operand)
    if layout.element.threshold is not None and layout.scaling is not None:
        return None  # nodes compare with half a scale
    steps: Steps | None = get_row(ROUNDED, layout.element)
    scale = steps and _one_scale(layout, steps)
    return Quant(steps, torch.tensor(scale)) if steps and scale else None


def _parameter_node(layout: Layout, step: QuantizedOperator, operand: str) -> Quant | None:
    effective = step.effective(operand).detach()
    layout = layout.fitted(effective)
    steps: Steps | None = get_row(STORED, layout.element)
    scale = steps and _scale(layout, steps, effective)
    if steps is None or scale is None:
        return None
    # Only now, because rounding can search for scales, which takes longest.
    values = rounded_parameter(step, operand)
    node = Quant(steps, scale.view(-1, *[1] * (values.dim() - 1)) if scale.dim() else scale, values)
    return node if torch.equal(node(values), values) else None


def _scale(layout: Layout, steps: Steps, effective: Tensor) -> Tensor | None:
    """Returns a parameter's scale: float32 () or (n,) for each index of the first axis."""
    if one := _one_scale(layout, steps):
        return torch.tensor(one)
    scale = get_scale(layout, effective)
    return None if scale is None else scale * steps.step


def _one_scale(layout: Layout, steps: Steps) -> float | None:
    return one_scale(layout, Integers(steps.low, steps.high, steps.step))


def _fixed(element: Fixed) -> Steps | None:
    narrowest = 1 if element.code == "unsigned" else 2
    if not narrowest <= element.width <= WIDEST:
        return None
    floors = element.rounding == "floor"
    step = 2.0**-element.frac_width
    return Steps(element.lowest_code, element.largest_code, step, floors)


def _sign(element: Sign) -> Steps | None:
    return Steps(-1, 1, is_bipolar=True) if element.bipolar and not element.stochastic else None


def _trit(element: Trit) -> Steps | None:
    return Steps(-1, 1) if element.threshold == HALF else None


Rows = Mapping[type[Element], Callable[[Any], Steps | None]]
ROUNDED: Rows = {Fixed: _fixed, Sign: _sign, Trit: _trit}
"""Steps of activations, which a node rounds like the element, by element class."""


def _stored_fixed(element: Fixed) -> Steps | None:
    steps = _fixed(element)
    return None if steps is None else steps._replace(floors=False)


def _stored_sign(element: Sign) -> Steps | None:
    if element.stochastic:
        return None
    return Steps(-1, 1, is_bipolar=True) if element.bipolar else Steps(0, 1)


STORED: Rows = {Fixed: _stored_fixed, Sign: _stored_sign, Trit: lambda element: Steps(-1, 1)}
"""Steps of parameters, which are rounded already, by element class."""
