"""Quantizable layers of a graph, with formats switched in place and scales calibrated once."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.captured.nodes.modes import is_of_training
from chop.errors import ConfigError, did_you_mean
from chop.formats import Float, NumberFormat, QuantSpec
from chop.ir.annotate import record_formats
from chop.ir.flops import FlopCounts
from chop.ir.graph import MaseGraph, node_metadata
from chop.ir.ops import OPS, quantizable_operators
from chop.nn.quantized import QuantCall, QuantizedOperator, leaf_operators
from chop.passes import quantize_transform_pass
from chop.passes.base import check_graph
from chop.private.modules import own_parameters
from chop.problems.mixed_precision.candidates import Rule, fitted
from chop.quantization.calibration import sample_operands
from chop.train.feed import eval_mode

Formats = Mapping[str, NumberFormat]
"""Operand (`data_in`, `weight`, `bias`) -> format."""
FLOAT = Float()
PARAMETERS = ("weight", "bias")


@dataclass
class Layer:
    """Quantizable layer.

    Attributes:
        name: path in the model, or the node name of a function call.
        parts: path -> quantized operator, usually only the layer itself.
        operands: operands that can be quantized.
        macs: number of multiply-accumulate operations for one row of data.
        inputs: number of elements of each part's input for one row of data, and its shape.
    """

    name: str
    parts: dict[str, QuantizedOperator]
    operands: tuple[str, ...]
    macs: float = 0.0
    inputs: dict[str, tuple[float, torch.Size]] = field(default_factory=dict)

    @property
    def operator(self) -> QuantizedOperator:
        """Part with the parameters."""
        return next(iter(self.parts.values()))

    def parameters(self) -> dict[str, nn.Parameter]:
        """Quantizable parameters by operand."""
        held = own_parameters(self.operator)
        return {name: x for name in PARAMETERS if (x := held.get(name)) is not None}


class Layers:
    """Layers of a graph for which a search chooses formats.

    All layers are float until `switch` is called.

    Args:
        mg: copy of the graph.
        batches: a few input batches by name, for calibration and counting.
        operators: names of operators. None selects modules with a weight matrix.
        rule: calibration rule for exponent biases.
        is_whole: also includes all other quantizable operators, without choices, because a circuit
            needs formats for all of them.
    Raises:
        ConfigError: if an operator is unknown, or the graph contains none of them.

    Attributes:
        mg: a copy of the graph, which the search may change.
        by_name: layers in execution order.
        searched: names of the layers selected by `operators`.
        sharing: first layer with a weight -> other layers with the same weight.
    """

    def __init__(
        self,
        mg: MaseGraph,
        batches: Iterable[Mapping[str, Tensor]],
        operators: Sequence[str] | None = None,
        rule: Rule = "mse",
        is_whole: bool = False,
    ) -> None:
        check_graph("chop.search", mg, ("add_common_metadata_analysis_pass",))
        nodes = _chosen(mg, operators)
        self.searched = tuple(map(_name, nodes))
        if is_whole:
            nodes = _chosen(mg, (), is_any=True)
        rules = {_name(node): {"config": QuantSpec()} for node in nodes}
        self.mg, _ = quantize_transform_pass(mg, {"by": "name", **rules})
        self.rule = rule
        self.by_name = {layer.name: layer for layer in map(self._layer, nodes)}
        self.sharing = _sharing(self.by_name)
        self._fitted: dict[tuple[str, str, str], NumberFormat] = {}
        self._specs: dict[tuple[str, ...], QuantSpec] = {}
        self._batches = list(batches)
        _count(self, self._batches[0])

    def _layer(self, node: fx.Node) -> Layer:
        twin = self.mg.get_module(self.mg.node(node.name))
        assert isinstance(twin, QuantizedOperator)
        path = next(path for path, module in self.mg.model.named_modules() if module is twin)
        inner = leaf_operators(twin)
        parts = {f"{path}.{inside}" if inside else path: part for inside, part in inner.items()}
        return Layer(_name(node), parts, list_operands(twin))

    @cached_property
    def _samples(self) -> dict[str, dict[str, Tensor]]:
        """Samples of the inputs by path and operand; a search of weights needs none."""
        parts = {p: part for layer in self.by_name.values() for p, part in layer.parts.items()}
        inputs = {
            p: [n for n in part.operands if n not in own_parameters(part)]
            for p, part in parts.items()
        }
        return sample_operands(self.mg.model, self._batches, inputs)

    def fit(
        self, path: str, part: QuantizedOperator, operand: str, fmt: NumberFormat
    ) -> NumberFormat:
        """Returns the format calibrated for an operand of a part, from a cache."""
        if fmt.is_identity:
            return fmt
        key = (path, operand, fmt.key)
        if key not in self._fitted:
            is_parameter = own_parameters(part).get(operand) is not None
            samples = part.effective(operand) if is_parameter else self._samples[path].get(operand)
            self._fitted[key] = fmt if samples is None else fitted(fmt, samples, self.rule)
        return self._fitted[key]

    def switch(self, chosen: Mapping[str, Formats]) -> None:
        """Switches the layers to other formats in place; other layers and operands become float.

        Args:
            chosen: formats by layer name, calibrated or not.
        """
        for name, layer in self.by_name.items():
            formats = chosen.get(name, {})
            for path, part in layer.parts.items():
                part.spec = self._spec(path, part, formats)

    def _spec(self, path: str, part: QuantizedOperator, formats: Formats) -> QuantSpec:
        key = (path, *(f"{operand} {fmt.key}" for operand, fmt in formats.items()))
        if key not in self._specs:
            present = list_operands(part)
            own: dict[str, Any] = {
                n: self.fit(path, part, n, fmt) for n, fmt in formats.items() if n in present
            }
            self._specs[key] = QuantSpec(**own)
        return self._specs[key]

    def input_variance(self, name: str) -> float:
        """Returns the variance of a layer's inputs during calibration; NaN for integers."""
        samples = self._samples.get(next(iter(self.by_name[name].parts)), {})
        x = samples.get("data_in")
        return float("nan") if x is None else x.double().var(unbiased=False).item()

    def rules(self, chosen: Mapping[str, Formats]) -> dict[str, dict[str, QuantSpec]]:
        """Returns the formats as settings of `quantize_transform_pass` by name, with scales.

        Raises:
            ConfigError: if a layer consists of several operators.
        """
        self.switch(chosen)
        for name, layer in self.by_name.items():
            if len(layer.parts) > 1:
                raise ConfigError(
                    f"layer '{name}' consists of {len(layer.parts)} operators with separate "
                    "scales, which a single rule cannot express; use the graph itself."
                )
        return {name: {"config": layer.operator.spec} for name, layer in self.by_name.items()}

    def graph(self, chosen: Mapping[str, Formats]) -> MaseGraph:
        """Returns a new graph in these formats, with scales."""
        self.switch(chosen)
        mg = self.mg.copy()
        for node in mg.nodes:
            module = mg.get_module(node)
            if isinstance(module, QuantizedOperator):
                record_formats(node, module)
        return mg


def _sharing(layers: Mapping[str, Layer]) -> dict[str, list[str]]:
    users: dict[int, list[str]] = {}
    for name, layer in layers.items():
        weight = layer.parameters().get("weight")
        if weight is not None:
            users.setdefault(id(weight), []).append(name)
    return {names[0]: names[1:] for names in users.values() if len(names) > 1}


def list_operands(operator: QuantizedOperator) -> tuple[str, ...]:
    """Returns the quantizable operands that an operator has."""
    is_call = operator.function is not None
    return tuple(operator.operands if is_call else operator.present_operands(operator))


def _chosen(mg: MaseGraph, operators: Sequence[str] | None, is_any: bool = False) -> list[fx.Node]:
    """Returns the nodes that need formats; of several calls of one module, the first.

    Args:
        mg: the graph.
        operators: names of operators. None selects modules with a weight matrix.
        is_any: selects all quantizable operators.
    """
    nodes: dict[str, fx.Node] = {}
    for node in mg.nodes:
        row, module = mg.operator(node), mg.get_module(node)
        can_be_named = row.is_quantizable or row.is_opt_in
        lacks_form = not can_be_named or (module is not None and row.quantized is None)
        if lacks_form or is_of_training(node):
            continue
        results = node_metadata(node).common.results.values()
        wanted = row.name in operators if operators is not None else _has_matrix(module)
        wanted |= is_any and row.is_quantizable
        if wanted and all(info.is_floating for info in results):
            nodes.setdefault(_name(node), node)
    for name in operators or ():
        if name not in (known := quantizable_operators(opt_in=True)):
            raise ConfigError(f"operators: unknown '{name}': {did_you_mean(name, known)}")
    if not nodes:
        what = "a matrix of weights" if operators is None else f"one of {', '.join(operators)}"
        present = sorted({mg.operator(node).name for node in mg.nodes} & OPS.keys())
        raise ConfigError(f"the model has no layer with {what}; it has: {', '.join(present)}.")
    return list(nodes.values())


def _has_matrix(module: nn.Module | None) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() > 1


def _name(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_module" else node.name


def _count(layers: Layers, batch: Mapping[str, Tensor]) -> None:
    """Stores each layer's operations and inputs from a forward of the float model."""
    model = layers.mg.model
    rows = len(next(iter(batch.values())))
    parts = {path: part for x in layers.by_name.values() for path, part in x.parts.items()}
    # Adapters are submodules of a part and count as part of it.
    paths = {module: path for path, part in parts.items() for module in part.modules()}
    seen: dict[str, torch.Size] = {}
    flops, counts = dict.fromkeys(parts, 0), FlopCounts()

    def look(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        given = [x for x in _in_order(module, args, kwargs) if isinstance(x, Tensor)]
        path = paths[module]
        if module is parts[path] and given and given[0].is_floating_point():
            seen.setdefault(path, given[0].shape)
        flops[path] += counts.count_module(module, args, kwargs, result)

    hooks = [module.register_forward_hook(look, with_kwargs=True) for module in paths]
    try:
        with torch.no_grad(), eval_mode(model):
            model(**batch)
    finally:
        for hook in hooks:
            hook.remove()
    for layer in layers.by_name.values():
        layer.macs = sum(flops[path] for path in layer.parts) / 2 / rows
        layer.inputs = {p: (math.prod(seen[p]) / rows, seen[p]) for p in layer.parts if p in seen}


def _in_order(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """Returns the arguments of a call in the order of its parameters."""
    names: Iterable[str] = inspect.signature(module.forward).parameters
    if isinstance(module, QuantCall):
        names = module.arguments
    return [*args, *(kwargs[name] for name in names if name in kwargs)]
