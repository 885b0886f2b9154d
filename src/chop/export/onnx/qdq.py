"""QDQ graph: codes, scales, QuantizeLinear and DequantizeLinear in place of formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.captured.overrides import has_hooks
from chop.errors import ConfigError
from chop.export.onnx.grids import CHOICE, AffineGrid, grid_of
from chop.export.onnx.grouped import Grouped, grouped, twin
from chop.export.onnx.operators import onnx_dequantize, onnx_round
from chop.formats import Gradient, Quantizer, QuantSpec, StandIn
from chop.ir.graph import MaseGraph
from chop.ir.settled import (
    hooked_modules,
    missing_forms,
    operand_text,
    refuse_hooks,
    settled_copy,
)
from chop.nn.quantized import QuantizedOperator, QuantLinear, leaf_operators
from chop.nn.quantized.codes import codes_in_products, parameter_codes, rounded_parameter
from chop.nn.quantized.masks import FULL, MASK
from chop.private.modules import buffers_of, parameters_of

WHERE = "export_onnx_interface_pass"
WAY_OUT = f"choose {CHOICE}, or export these as floats with 'float_fallback': True"
LINEAR = "Gemm"
CONVOLUTION = "Conv"
"""What runtimes compute in integers only if the result is rounded too."""


@dataclass(frozen=True)
class QdqGraph:
    """Graph of QuantizeLinear and DequantizeLinear, ready to be exported.

    Attributes:
        mg: a graph of its own, whose quantized operands are codes and scales.
        quantized: paths of the modules with such operands.
        fallback: text for each operand that became float instead.
    """

    mg: MaseGraph
    quantized: list[str]
    fallback: list[str] = field(default_factory=list)


@dataclass(eq=False)
class _Round(StandIn):
    """An activation: quantized and dequantized.

    Attributes:
        grid: its values.
    """

    grid: AffineGrid

    def __call__(self, x: Tensor, gradient: Gradient = "identity") -> Tensor:
        grid, scale = self.grid, self.grid.scale
        if scale is None:
            largest = x.abs().max().float()
            scale = (largest / grid.high).clamp(min=torch.finfo(torch.float32).tiny)
        rounded: Tensor = onnx_round(x.float(), scale, grid.low, grid.high)
        return rounded.to(x.dtype)


@dataclass(eq=False)
class _Codes(StandIn):
    """A weight: dequantized.

    Attributes:
        codes: int8 or uint8, of the weight's shape.
        scale: float32 (), or (n,) for each index of the first axis.
    """

    codes: Tensor
    scale: Tensor

    def __post_init__(self) -> None:
        self.zero_point = torch.zeros_like(self.scale, dtype=self.codes.dtype)

    def __call__(self, x: Tensor, gradient: Gradient = "identity") -> Tensor:
        values: Tensor = onnx_dequantize(self.codes, self.scale, self.zero_point, 0)
        return values


@dataclass(eq=False)
class _Values(StandIn):
    """A parameter that stays float: its rounded values.

    Attributes:
        values: they.
    """

    values: Tensor

    def __call__(self, x: Tensor, gradient: Gradient = "identity") -> Tensor:
        return self.values


class _Linear(nn.Module):
    """A linear layer as a product of three axes and a sum.

    Runtimes do not transpose codes, so the weight lies as (in, out); and they merge a product of
    matrices with its sum, whose bias then has to be an integer, less precise than it was.

    Args:
        layer: the layer; its spec has stand-ins.
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
    """A convolution's bias in multiples of the product's scale; None if there is no such scale."""
    rounds, weight = spec.data_in, spec.weight
    if bias is None or not (isinstance(rounds, _Round) and isinstance(weight, _Codes)):
        return None
    if rounds.grid.scale is None:
        return None
    scale = rounds.grid.scale * weight.scale
    codes = codes_in_products(spec.bias(bias), scale)
    return None if codes is None else _Codes(codes, scale)


def _round_early(qdq: MaseGraph) -> None:
    """Rounds results of convolutions before activations, not after them.

    Runtimes compute a convolution in integers only if its result is rounded. Rounding to a grid
    commutes with what only moves numbers or drops negative ones, so that nothing changes.
    """
    for node in qdq.nodes:
        if _integer_form(qdq, node) != CONVOLUTION:
            continue
        module: Any = qdq.module_of(node)
        rounds = _rounds_of(qdq, node)
        grids = {stand_in.grid for stand_in in rounds if isinstance(stand_in, _Round)}
        fixed = len(grids) == 1 and len(rounds) == sum(isinstance(r, _Round) for r in rounds)
        (grid,) = grids if fixed else (None,)
        if grid is not None and grid.scale is not None and module.spec.data_out.is_identity:
            module.spec = module.spec.with_quantizers(data_out=_Round(grid))


def _rounds_of(qdq: MaseGraph, node: fx.Node) -> list[Quantizer | None]:
    """What rounds a node's result, past steps that commute with rounding; None: nothing."""
    rounds: list[Quantizer | None] = []
    for user in node.users:
        row, module = qdq.operator(user), qdq.module_of(user)
        if module is not None and has_hooks(module):
            rounds.append(None)
        elif isinstance(module, QuantizedOperator) and _integer_form(qdq, user):
            rounds.append(module.spec.data_in)
        elif (row.commutes or row.only_moves) and not isinstance(module, QuantizedOperator):
            rounds += _rounds_of(qdq, user)
        else:
            rounds.append(None)
    return rounds


def _integer_form(qdq: MaseGraph, node: fx.Node) -> str:
    """The ONNX operator that computes a quantized layer in integers; "" for other nodes."""
    module = qdq.module_of(node)
    is_layer = isinstance(module, QuantizedOperator) and module.function is None
    # A hook may change what is rounded, and runs on the layer as it is.
    is_layer = is_layer and not has_hooks(module)  # type: ignore[arg-type]
    return qdq.operator(node).onnx if is_layer else ""


def qdq_graph(mg: MaseGraph, float_fallback: bool) -> QdqGraph:
    """QDQ copy of a graph: every rounding is one that ONNX has.

    Args:
        mg: the graph; it stays as it is.
        float_fallback: where ONNX lacks a format, activations are not rounded, and weights are
            floats with their rounded values.
    Raises:
        ConfigError: ONNX lacks formats and `float_fallback` is False, or learned scales wait.
    """
    qdq = settled_copy(mg)
    hooks = hooked_modules(qdq)
    refuse_hooks({path: hook for path, hook in hooks.items() if not path}, WHERE, "the file")
    steps = leaf_operators(qdq.model)
    _check_dtypes(steps)
    plans = {name: _plan(step, mg.model.get_submodule(name)) for name, step in steps.items()}
    missing = [
        operand_text(name, steps[name], operand)
        for name, plan in plans.items()
        for operand, stand_in in plan.items()
        if stand_in is None
    ]
    if missing and not float_fallback:
        raise ConfigError(missing_forms(WHERE, "ONNX has no form in integers", missing, WAY_OUT))
    quantized = []
    for name, step in steps.items():
        chosen = {k: _fallback(step, k) if v is None else v for k, v in plans[name].items()}
        if any(isinstance(stand_in, _Round | _Codes | Grouped) for stand_in in chosen.values()):
            quantized.append(name)
        step.spec = QuantSpec().with_quantizers(**chosen)
        for name in (MASK, FULL):  # the codes are zero there
            buffers_of(step).pop(name, None)
    _round_early(qdq)
    for node in qdq.nodes:
        layer: Any = qdq.module_of(node)
        if isinstance(layer, QuantizedOperator) and isinstance(layer.spec.weight, Grouped):
            if (coded := twin(layer)) is not None:
                qdq.replace(node, coded)
        elif _integer_form(qdq, node) == LINEAR and isinstance(layer.spec.weight, _Codes):
            qdq.replace(node, _Linear(layer))
        elif _integer_form(qdq, node) == CONVOLUTION:
            bias = _integer_bias(layer.bias, layer.spec) or layer.spec.bias
            layer.spec = layer.spec.with_quantizers(bias=bias)
    return QdqGraph(qdq, quantized, missing)


def _check_dtypes(steps: Mapping[str, QuantizedOperator]) -> None:
    for name, step in steps.items():
        others = {x.dtype for x in step.parameters() if x.is_floating_point()} - {torch.float32}
        if others and not step.spec.is_float:
            raise ConfigError(
                f"{WHERE}: ONNX rounds float32, and '{name or 'model'}' has "
                f"{others.pop()} parameters; call mg.model.float() first."
            )


def _plan(step: QuantizedOperator, original: nn.Module) -> dict[str, StandIn | None]:
    """A stand-in for each operand that is not float; None where ONNX has none.

    Args:
        step: the operator.
        original: it, in the graph that was given.
    """
    present = [operand for operand, quantizer in step.spec.items() if not quantizer.is_identity]
    plan = {operand: _stand_in(step, operand) for operand in present}
    if "weight" in plan and (plan["weight"] is None or _is_alone(step)):
        plan["weight"] = grouped(original, step) or plan["weight"]
    if step.is_pruned and "weight" not in plan:
        plan["weight"] = _Values(step.effective("weight").detach())
    return plan


def _stand_in(step: QuantizedOperator, operand: str) -> StandIn | None:
    number_format = step.spec.number_format(operand)
    if parameters_of(step).get(operand) is None:
        grid = grid_of(number_format)
        return None if grid is None else _Round(grid)
    if operand == "bias":
        return _Values(rounded_parameter(step, operand))
    grid = grid_of(number_format, step.effective(operand))
    if grid is None or grid.scale is None:
        return None
    codes = parameter_codes(step, operand, grid.scale)
    return _Codes(codes.to(grid.dtype), grid.scale)


def _is_alone(step: QuantizedOperator) -> bool:
    """Whether a linear layer has a weight in a format, and floats as inputs."""
    return isinstance(step, QuantLinear) and step.spec.data_in.is_identity


def _fallback(step: QuantizedOperator, operand: str) -> Quantizer:
    """Floats: a parameter's rounded values, activations as they are."""
    is_parameter = parameters_of(step).get(operand) is not None
    return _Values(rounded_parameter(step, operand)) if is_parameter else QuantSpec().data_in
