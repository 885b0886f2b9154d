"""Turns formats that wait for data into fixed ones, from what really flows through the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.formats import QuantSpec
from chop.ir.graph import MaseGraph
from chop.nn.quantized import QuantizedOperator
from chop.passes.analysis.add_common_metadata import record_formats
from chop.passes.base import graph_pass

MAX_SAMPLES_PER_BATCH = 2**16


@dataclass(frozen=True)
class CalibrateConfig:
    """Settings of `calibrate_transform_pass`.

    Attributes:
        batches: inputs of the model by name, one mapping per batch; inputs that the graph does
            not have are ignored.
    """

    batches: Iterable[Mapping[str, Any]]


@graph_pass(config=CalibrateConfig, requires=("quantize_transform_pass",))
def calibrate_transform_pass(mg: MaseGraph, config: CalibrateConfig) -> dict[str, Any]:
    """Fits every format with an `"auto"` field to the values that reach it in `batches`.

    The model runs in eval mode with all quantisers off, so that one layer's error does not
    disturb the next one's range. Extremes are kept exactly; of the other values an even sample.

    Returns: `{"fitted": number of operands fitted}`.
    """
    waiting = {
        name: module
        for name, module in mg.model.named_modules()
        if isinstance(module, QuantizedOperator) and _waiting(module.spec)
    }
    specs = {name: module.spec for name, module in _quantized(mg)}
    samples: dict[str, dict[str, list[Tensor]]] = {
        name: {operand: [] for operand in _waiting(module.spec)} for name, module in waiting.items()
    }
    try:
        for name, module in _quantized(mg):
            module.spec = _observing(samples.get(name, {}))
        _run(mg, config.batches)
    finally:
        for name, module in _quantized(mg):
            module.spec = specs[name]
    fitted = 0
    for name, module in waiting.items():
        seen = {operand: torch.cat(parts) for operand, parts in samples[name].items() if parts}
        module.spec = module.spec.fitted(seen)
        fitted += len(seen)
    for node in mg.nodes:
        called = mg.module_of(node)
        if isinstance(called, QuantizedOperator):
            record_formats(node, called)
    return {"fitted": fitted}


class _Observer:
    """Stands in for a format: keeps a sample of what passes and changes nothing."""

    def __init__(self, kept: list[Tensor]) -> None:
        self.kept = kept

    def __call__(self, x: Tensor, gradient: str) -> Tensor:
        flat = x.detach().reshape(-1).float()
        if flat.numel():
            ends = torch.stack(flat.aminmax())
            self.kept += [ends, flat[:: max(1, flat.numel() // MAX_SAMPLES_PER_BATCH)].clone()]
        return x


def _observing(kept: Mapping[str, list[Tensor]]) -> QuantSpec:
    observers: dict[str, Any] = {operand: _Observer(values) for operand, values in kept.items()}
    return dataclasses.replace(QuantSpec(), **observers)


def _waiting(spec: QuantSpec) -> list[str]:
    return [operand for operand, number_format in spec.items() if not number_format.is_fitted]


def _quantized(mg: MaseGraph) -> list[tuple[str, QuantizedOperator]]:
    modules = mg.model.named_modules()
    return [(name, module) for name, module in modules if isinstance(module, QuantizedOperator)]


def _run(mg: MaseGraph, batches: Iterable[Mapping[str, Any]]) -> None:
    inputs = {node.target for node in mg.nodes if node.op == "placeholder"}
    modes = {name: module.training for name, module in mg.model.named_modules()}
    mg.model.eval()
    count = 0
    with torch.no_grad():
        for batch in batches:
            count += 1
            mg.model(**{name: value for name, value in batch.items() if name in inputs})
    for name, module in mg.model.named_modules():
        module.training = modes[name]
    if count == 0:
        raise ConfigError(
            "calibrate_transform_pass.batches: expected at least one batch, got none."
        )
