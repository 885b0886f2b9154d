"""Stand-ins for number formats in a file, planned before the graph is changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx

from chop.errors import ConfigError
from chop.formats import Gradient, Quantizer, QuantSpec, StandIn
from chop.ir.dotted import deepgetattr
from chop.ir.graph import MaseGraph
from chop.ir.settled import hooked_modules, refuse_hooks, settled_copy
from chop.nn.quantized import QuantCall, QuantizedOperator, leaf_operators
from chop.nn.quantized.codes import rounded_parameter
from chop.nn.quantized.masks import MASK_BUFFERS
from chop.private.modules import own_buffers, own_parameters

Form = Callable[[QuantizedOperator, str], StandIn | None]
"""Returns the stand-in for the format of a layer's operand, or None if the file has none."""


@dataclass(eq=False)
class Values(StandIn):
    """Float parameter with rounded values.

    Attributes:
        values: rounded values.
    """

    values: Tensor

    def __call__(self, x: Tensor, gradient: Gradient = "identity") -> Tensor:
        """Returns the values."""
        return self.values


@dataclass(frozen=True)
class StandIns:
    """Graph to be written, and the stand-ins for its formats.

    Attributes:
        mg: new graph on the CPU; it contains formats until `put`.
        steps: its quantized operators by path.
        plans: a stand-in for each quantized operand, by path; None if there is none.
    """

    mg: MaseGraph
    steps: Mapping[str, QuantizedOperator]
    plans: Mapping[str, Mapping[str, StandIn | None]]

    @property
    def missing(self) -> list[tuple[str, str]]:
        """Returns the paths and operands without a stand-in."""
        named = [(path, *item) for path, plan in self.plans.items() for item in plan.items()]
        return [(path, operand) for path, operand, stand_in in named if stand_in is None]

    def with_given_parameters(self) -> StandIns:
        """Returns plans with `Values` for missing operands that calls pass as parameters.

        An operand that calls pass from several parameters stays missing.
        """
        given: dict[tuple[str, str], set[str]] = {}
        for node in self.mg.nodes:
            call = self.mg.get_module(node)
            if isinstance(call, QuantCall):
                named = {**dict(zip(call.arguments, node.args, strict=False)), **node.kwargs}
                for name, value in named.items():
                    key = str(node.target), str(call.arguments.get(name))
                    given.setdefault(key, set()).add(_fetched(value))
        plans = {path: dict(plan) for path, plan in self.plans.items()}
        for path, operand in self.missing:
            parameters = given.get((path, operand), {""})
            if len(parameters) == 1 and "" not in parameters:
                x = deepgetattr(self.mg.model, *parameters)
                plans[path][operand] = Values(self.steps[path].quantize(operand, x).detach())
        return replace(self, plans=plans)

    def put(self) -> list[str]:
        """Replaces the formats by the stand-ins; operands without one become float.

        Returns: paths of the operators with stand-ins other than `Values`.
        """
        quantized = []
        for path, step in self.steps.items():
            plan = self.plans[path].items()
            chosen = {key: fallback(step, key) if x is None else x for key, x in plan}
            if any(isinstance(x, StandIn) and not isinstance(x, Values) for x in chosen.values()):
                quantized.append(path)
            step.spec = QuantSpec().with_quantizers(**chosen)
            for name in MASK_BUFFERS:  # the values are zero there
                own_buffers(step).pop(name, None)
        return quantized


def _fetched(value: object) -> str:
    """Returns the path of the tensor that an argument fetches; "" for other arguments."""
    return str(value.target) if isinstance(value, fx.Node) and value.op == "get_attr" else ""


def plan_stand_ins(mg: MaseGraph, form: Form, where: str) -> StandIns:
    """Plans the stand-ins of a graph.

    Args:
        mg: graph; it is not changed.
        form: returns the stand-in of an operand.
        where: caller, for messages.

    Raises:
        ConfigError: if learned scales are not initialized, the model has a hook, or rounded
            parameters are not float32.
    """
    settled = settled_copy(mg)
    hooks = hooked_modules(settled)
    refuse_hooks({path: hook for path, hook in hooks.items() if not path}, where, "the file")
    steps = leaf_operators(settled.model)
    _check_dtypes(steps, where)
    return StandIns(settled, steps, {path: _plan(step, form) for path, step in steps.items()})


def is_parameter(step: QuantizedOperator, operand: str) -> bool:
    """Returns True if an operand is a parameter of its layer instead of an activation."""
    return own_parameters(step).get(operand) is not None


def fallback(step: QuantizedOperator, operand: str) -> Quantizer:
    """Returns a float form: rounded values of a parameter, or an unchanged activation."""
    if is_parameter(step, operand):
        return Values(rounded_parameter(step, operand))
    return QuantSpec().data_in


def _plan(step: QuantizedOperator, form: Form) -> dict[str, StandIn | None]:
    present = [operand for operand, quantizer in step.spec.items() if not quantizer.is_identity]
    plan = {operand: form(step, operand) for operand in present}
    if step.is_pruned and "weight" not in plan:
        plan["weight"] = Values(step.effective("weight").detach())
    return plan


def _check_dtypes(steps: Mapping[str, QuantizedOperator], where: str) -> None:
    for path, step in steps.items():
        others = {x.dtype for x in step.parameters() if x.is_floating_point()} - {torch.float32}
        if others and not step.spec.is_float:
            raise ConfigError(
                f"{where}: ONNX rounds only float32, but '{path or 'model'}' has "
                f"{others.pop()} parameters; call mg.model.float() first."
            )
