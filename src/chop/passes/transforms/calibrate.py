"""Turns formats that wait for data into fixed ones, from what really flows through the model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chop.formats import QuantSpec
from chop.ir.capture.isolation import untouched
from chop.ir.graph import MaseGraph
from chop.nn.quantized import QuantizedOperator
from chop.passes.analysis.add_common_metadata import record_formats
from chop.passes.base import graph_pass
from chop.passes.batches import Batches, known_inputs
from chop.passes.statistics import Reservoir

MAX_SAMPLES = 2**17


@dataclass(frozen=True)
class CalibrateConfig:
    """Settings of `calibrate_transform_pass`.

    Attributes:
        batches: inputs of the model by name, one mapping per batch; inputs that the graph does
            not have are ignored.
    """

    batches: Batches


@graph_pass(config=CalibrateConfig, requires=("quantize_transform_pass",))
def calibrate_transform_pass(mg: MaseGraph, config: CalibrateConfig) -> dict[str, Any]:
    """Fits every format with a derived field to the values that reach it in `batches`.

    Learnt scales of inputs and results start from these values too.

    The model runs in eval mode with all quantisers off, so that one layer's error does not
    disturb the next one's range. Extremes are kept exactly; of more than 131,072
    values of an operand, a uniform sample.

    Returns: `{"fitted": number of operands fitted}`.
    """
    steps = _steps(mg)
    specs = {name: step.spec for name, step in steps.items()}
    observers = {
        name: {operand: _Observer() for operand in _waiting(step)} for name, step in steps.items()
    }
    try:
        for name, step in steps.items():
            step.spec = dataclasses.replace(QuantSpec(), **observers[name])  # type: ignore[arg-type]
        batches = known_inputs(mg, config.batches, "calibrate_transform_pass.batches")
        with untouched(mg.model), torch.no_grad():
            mg.model.eval()
            for batch in batches:
                mg.model(**batch)
    finally:
        for name, step in steps.items():
            step.spec = specs[name]
    fitted = 0
    for name, step in steps.items():
        samples = {operand: observer.seen for operand, observer in observers[name].items()}
        seen = {operand: sample for operand, sample in samples.items() if sample is not None}
        step.spec = step.spec.fitted(seen)
        for operand in seen.keys() & set(step.waiting):
            step.start_scales(operand, seen[operand])
        fitted += len(seen)
    for node in mg.nodes:
        called = mg.module_of(node)
        if isinstance(called, QuantizedOperator):
            record_formats(node, called)
    return {"fitted": fitted}


class _Observer:
    """Stands in for a format: keeps a sample of what passes and changes nothing."""

    def __init__(self) -> None:
        self.sample = Reservoir(MAX_SAMPLES)
        self.ends = torch.empty(0)

    def __call__(self, x: Tensor, gradient: str) -> Tensor:
        values = x.detach().float().reshape(-1)
        if not values.numel():
            return x
        ends = torch.stack(values.aminmax())
        if not ends.isfinite().all():
            values = values[values.isfinite()]
            ends = torch.stack(values.aminmax()) if values.numel() else ends[:0]
        both = torch.cat([self.ends.to(ends), ends])
        self.ends = torch.stack(both.aminmax()) if both.numel() else both
        self.sample.add(values)
        return x

    @property
    def seen(self) -> Tensor | None:
        """The sample, with the extremes where it may lack them; None if nothing passed."""
        sample = self.sample.columns()
        if sample is None or self.sample.is_everything:
            return sample
        return torch.cat([self.ends, sample])


def _waiting(step: QuantizedOperator) -> list[str]:
    unfitted = [operand for operand, fmt in step.spec.items() if not fmt.is_fitted]
    held = dict(step.named_parameters(recurse=False))
    return [*unfitted, *(operand for operand in step.waiting if operand not in held)]


def _steps(mg: MaseGraph) -> dict[str, QuantizedOperator]:
    """The quantised operators that are not made of smaller ones."""
    return {
        name: module
        for name, module in mg.model.named_modules()
        if isinstance(module, QuantizedOperator)
        and not any(isinstance(child, QuantizedOperator) for child in module.children())
    }
