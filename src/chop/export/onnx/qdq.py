"""QDQ graph: codes, scales, QuantizeLinear and DequantizeLinear in place of number formats."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.captured.overrides import has_hooks
from chop.errors import ConfigError
from chop.export.onnx.grids import CHOICE, AffineGrid, get_grid
from chop.export.onnx.grouped import Grouped, grouped, has_float_inputs, twin
from chop.export.onnx.operators import onnx_dequantize, onnx_round
from chop.export.onnx.stand_ins import StandIns, Values, is_parameter, plan_stand_ins
from chop.formats import Gradient, Quantizer, QuantSpec, StandIn
from chop.ir.graph import MaseGraph
from chop.ir.settled import missing_forms, operand_text
from chop.nn.quantized import QuantizedOperator, QuantLinear
from chop.nn.quantized.codes import codes_in_products, parameter_codes, rounded_parameter

WHERE = "export_onnx_interface_pass"
WAY_OUT = f"choose {CHOICE}; or export these as floats with 'float_fallback': True"
LINEAR = "Gemm"
CONVOLUTION = "Conv"
"""Operator that runtimes compute in integers only if its result is rounded as well."""


class MissingFormsError(ConfigError):
    """ONNX has no integers for the formats of some operands.

    Args:
        message: message that names the operands.

    Attributes:
        formats: distinct formats of the operands.
    """

    def __init__(self, message: str, formats: Iterable[str]) -> None:
        super().__init__(message)
        self.formats = [*dict.fromkeys(formats)]


@dataclass(frozen=True)
class _QdqGraph:
    """Graph of QuantizeLinear and DequantizeLinear, ready for export.

    Attributes:
        mg: new graph with codes and scales as quantized operands.
        quantized: paths of the modules with such operands.
        fallback: text for each operand that became float instead.
        unrounded: fallback operands that are activations, which are not rounded.
    """

    mg: MaseGraph
    quantized: list[str]
    fallback: list[str] = field(default_factory=list)
    unrounded: list[str] = field(default_factory=list)


@dataclass(eq=False)
class _Round(StandIn):
    """Activation that is quantized and dequantized.

    Attributes:
        grid: grid of its values.
    """

    grid: AffineGrid
    ignores_zeros = True

    def __call__(self, x: Tensor, gradient: Gradient = "identity") -> Tensor:
        grid, scale = self.grid, self.grid.scale
        if scale is None:
            largest = x.abs().max().float()
            scale = (largest / grid.high).clamp(min=torch.finfo(torch.float32).tiny)
        rounded: Tensor = onnx_round(x.float(), scale, grid.low, grid.high)
        return rounded.to(x.dtype)


@dataclass(eq=False)
class _Codes(StandIn):
    """Weight that is dequantized.

    Attributes:
        codes: int8 or uint8, in the shape of the weight.
        scale: float32 (), or (n,) for each index of the first axis.
    """

    codes: Tensor
    scale: Tensor

    def __post_init__(self) -> None:
        self.zero_point = torch.zeros_like(self.scale, dtype=self.codes.dtype)

    def __call__(self, x: Tensor, gradient: Gradient = "identity") -> Tensor:
        values: Tensor = onnx_dequantize(self.codes, self.scale, self.zero_point, 0)
        return values


class _Linear(nn.Module):
    """Linear layer as a three-dimensional product and a sum.

    The weight is stored as (in, out), because runtimes do not transpose codes. The product has
    three dimensions, because runtimes fuse a matrix product with its sum and then round the bias.

    Args:
        layer: layer with stand-ins in its spec.
    """

    def __init__(self, layer: QuantLinear) -> None:
        super().__init__()
        assert isinstance(layer.spec.weight, _Codes)
        self.round, self.round_out = layer.spec.data_in, layer.spec.data_out
        self.weight = layer.spec.weight
        self.codes_io = self.weight.codes.T.contiguous()
        self.bias = None if layer.bias is None else layer.quantize("bias", layer.bias).detach()

    def forward(self, input: Tensor) -> Tensor:
        x, weight = self.round(input), self.weight
        weight_io = onnx_dequantize(self.codes_io, weight.scale, weight.zero_point, 1)
        y = x.unsqueeze(0) @ weight_io if input.dim() == 2 else x @ weight_io
        y = y if self.bias is None else y + self.bias
        return self.round_out(y.squeeze(0) if input.dim() == 2 else y)


def _integer_bias(bias: Tensor | None, spec: QuantSpec) -> _Codes | None:
    """Returns a convolution's bias in multiples of the product's scale, or None without scale."""
    rounds, weight = spec.data_in, spec.weight
    if bias is None or not (isinstance(rounds, _Round) and isinstance(weight, _Codes)):
        return None
    if rounds.grid.scale is None:
        return None
    scale = rounds.grid.scale * weight.scale
    codes = codes_in_products(spec.bias(bias), scale)
    return None if codes is None else _Codes(codes, scale)


def _round_early(qdq: MaseGraph) -> None:
    """Moves roundings of convolution results before the activations that follow.

    Runtimes compute a convolution in integers only if its result is rounded. Rounding to a grid
    commutes with operators that move numbers or drop negative ones, so results do not change.
    """
    # Only if all readers round to the same static grid, one rounding serves them all.
    for node in qdq.nodes:
        if integer_form(qdq, node) != CONVOLUTION:
            continue
        module: Any = qdq.get_module(node)
        rounds = _get_rounds(qdq, node)
        grids = {stand_in.grid for stand_in in rounds if isinstance(stand_in, _Round)}
        fixed = len(grids) == 1 and len(rounds) == sum(isinstance(r, _Round) for r in rounds)
        (grid,) = grids if fixed else (None,)
        if grid is not None and grid.scale is not None and module.spec.data_out.is_identity:
            module.spec = module.spec.with_quantizers(data_out=_Round(grid))


def _get_rounds(qdq: MaseGraph, node: fx.Node) -> list[Quantizer | None]:
    """Returns the rounding by each reader of a node, past commuting operators; None for others."""
    rounds: list[Quantizer | None] = []
    for user in node.users:
        row, module = qdq.operator(user), qdq.get_module(user)
        if module is not None and has_hooks(module):
            rounds.append(None)
        elif isinstance(module, QuantizedOperator) and integer_form(qdq, user):
            rounds.append(module.spec.data_in)
        elif (row.commutes or row.only_moves) and not isinstance(module, QuantizedOperator):
            rounds += _get_rounds(qdq, user)
        else:
            rounds.append(None)
    return rounds


def integer_form(qdq: MaseGraph, node: fx.Node) -> str:
    """Returns the ONNX operator that computes a quantized layer in integers; "" for other nodes."""
    module = qdq.get_module(node)
    is_layer = isinstance(module, QuantizedOperator) and module.function is None
    # A hook may change what is rounded, and runs on the layer as it is.
    is_layer = is_layer and not has_hooks(module)  # type: ignore[arg-type]
    return qdq.operator(node).onnx if is_layer else ""


def qdq_graph(mg: MaseGraph, float_fallback: bool) -> _QdqGraph:
    """Returns a copy of a graph with ONNX operators for every rounding.

    Args:
        mg: graph; it is not changed.
        float_fallback: if ONNX lacks a format, leaves activations unrounded, and stores the rounded
            values of weights as floats.
    Raises:
        MissingFormsError: if ONNX lacks formats and `float_fallback` is False.
        ConfigError: if learned scales are not initialized.
    """
    planned = _with_groups(plan_stand_ins(mg, _stand_in, WHERE), mg)
    missing = _texts(planned, planned.missing)
    if missing and not float_fallback:
        message = missing_forms(WHERE, "ONNX has no form in integers", missing, WAY_OUT)
        labels = (getattr(planned.steps[x].spec, operand).label for x, operand in planned.missing)
        raise MissingFormsError(message, labels)
    planned = planned.with_given_parameters()
    qdq, steps = planned.mg, planned.steps
    activations = [x for x in planned.missing if not is_parameter(steps[x[0]], x[1])]
    unrounded = _texts(planned, activations)
    quantized = planned.put()
    _round_early(qdq)
    for node in qdq.nodes:
        layer: Any = qdq.get_module(node)
        if isinstance(layer, QuantizedOperator) and isinstance(layer.spec.weight, Grouped):
            if (coded := twin(layer)) is not None:
                qdq.replace(node, coded)
        elif integer_form(qdq, node) == LINEAR and isinstance(layer.spec.weight, _Codes):
            qdq.replace(node, _Linear(layer))
        elif integer_form(qdq, node) == CONVOLUTION:
            bias = _integer_bias(layer.bias, layer.spec) or layer.spec.bias
            layer.spec = layer.spec.with_quantizers(bias=bias)
    return _QdqGraph(qdq, quantized, missing, unrounded)


def _texts(planned: StandIns, operands: list[tuple[str, str]]) -> list[str]:
    return [operand_text(path, planned.steps[path], operand) for path, operand in operands]


def _with_groups(planned: StandIns, mg: MaseGraph) -> StandIns:
    """Returns plans with grouped weights, for formats that ONNX lacks or for float inputs.

    Args:
        planned: plans of `mg`.
        mg: original graph with the codes of packed layers.
    """
    plans = {path: dict(plan) for path, plan in planned.plans.items()}
    for path, step in planned.steps.items():
        plan, is_float = plans[path], step.spec.weight.is_identity
        if not is_float and (plan["weight"] is None or has_float_inputs(step)):
            plan["weight"] = grouped(mg.model.get_submodule(path), step) or plan["weight"]
    return replace(planned, plans=plans)


def _stand_in(step: QuantizedOperator, operand: str) -> StandIn | None:
    number_format = step.spec.number_format(operand)
    if not is_parameter(step, operand):
        grid = get_grid(number_format)
        return None if grid is None else _Round(grid)
    if operand == "bias":
        return Values(rounded_parameter(step, operand))
    grid = get_grid(number_format, step.effective(operand))
    if grid is None or grid.scale is None:
        return None
    codes = parameter_codes(step, operand, grid.scale)
    return _Codes(codes.to(grid.dtype), grid.scale)
