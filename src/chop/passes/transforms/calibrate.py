"""Turns formats that wait for data into fixed ones, from what really flows through the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.formats import QuantSpec, even_sample
from chop.ir.capture.isolation import untouched
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
    steps = _steps(mg)
    specs = {name: step.spec for name, step in steps.items()}
    samples: dict[str, dict[str, list[Tensor]]] = {
        name: {operand: [] for operand in _waiting(spec)} for name, spec in specs.items()
    }
    try:
        for name, step in steps.items():
            step.spec = _observing(samples[name])
        _run(mg, config.batches)
    finally:
        for name, step in steps.items():
            step.spec = specs[name]
    fitted = 0
    for name, step in steps.items():
        seen = {operand: torch.cat(parts) for operand, parts in samples[name].items() if parts}
        step.spec = step.spec.fitted(seen)
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
        values = x.detach().float()
        if values.numel():
            ends = torch.stack(values.aminmax())
            self.kept += [ends, even_sample(values, MAX_SAMPLES_PER_BATCH).clone()]
        return x


def _observing(kept: Mapping[str, list[Tensor]]) -> QuantSpec:
    observers: dict[str, Any] = {operand: _Observer(values) for operand, values in kept.items()}
    return dataclasses.replace(QuantSpec(), **observers)


def _waiting(spec: QuantSpec) -> list[str]:
    return [operand for operand, number_format in spec.items() if not number_format.is_fitted]


def _steps(mg: MaseGraph) -> dict[str, QuantizedOperator]:
    """The quantised operators that are not made of smaller ones."""
    return {
        name: module
        for name, module in mg.model.named_modules()
        if isinstance(module, QuantizedOperator)
        and not any(isinstance(child, QuantizedOperator) for child in module.children())
    }


def _run(mg: MaseGraph, batches: Iterable[Mapping[str, Any]]) -> None:
    inputs = {node.target for node in mg.nodes if node.op == "placeholder"}
    device = next((parameter.device for parameter in mg.model.parameters()), None)
    count = 0
    with untouched(mg.model), torch.no_grad():
        mg.model.eval()
        for batch in batches:
            if not isinstance(batch, Mapping):
                raise ConfigError(
                    "calibrate_transform_pass.batches: expected mappings of inputs by name, got "
                    f"{type(batch).__name__}."
                )
            known = {name: value for name, value in batch.items() if name in inputs}
            mg.model(**{name: _to(value, device) for name, value in known.items()})
            count += 1
    if count == 0:
        raise ConfigError(
            "calibrate_transform_pass.batches: expected at least one batch, got none."
        )


def _to(value: Any, device: torch.device | None) -> Any:
    return value.to(device) if isinstance(value, Tensor) and device is not None else value
