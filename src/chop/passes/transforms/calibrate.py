"""Turns formats that wait for data into fixed ones, from what really flows through the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from chop.formats import Gradient, StandIn
from chop.ir.capture.isolation import untouched
from chop.ir.graph import MaseGraph
from chop.nn.packed import PackedOperator
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
    steps = basic_operators(mg.model)
    wanted = {name: _waiting(step) for name, step in steps.items()}
    batches = known_inputs(mg, config.batches, "calibrate_transform_pass.batches")
    samples = samples_of(mg.model, batches, wanted)
    fitted = 0
    for name, step in steps.items():
        seen = samples.get(name, {})
        step.spec = step.spec.fitted(seen)
        for operand in seen.keys() & set(step.waiting):
            step.start_scales(operand, seen[operand])
        fitted += len(seen)
    for node in mg.nodes:
        called = mg.module_of(node)
        if isinstance(called, QuantizedOperator):
            record_formats(node, called)
    return {"fitted": fitted}


def samples_of(
    model: nn.Module, batches: Iterable[Mapping[str, Any]], wanted: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Tensor]]:
    """What reaches operands of quantised operators while all quantisers are off.

    Parameters that are stored as codes have their rounded values.

    Args:
        model: runs in eval mode without gradients, and is left as it was.
        batches: its inputs by name.
        wanted: operands by the path of a `basic_operators`; the others are float meanwhile too.
    Returns: by path and operand float32 (n,): a uniform sample of at most 131,072 finite values,
        and their extremes; operands that nothing reached are left out.
    """
    steps = basic_operators(model)
    specs = {name: step.spec for name, step in steps.items()}
    observers = {name: {operand: _Observer() for operand in wanted.get(name, ())} for name in steps}
    try:
        for name, step in steps.items():
            stored = step.packed_shapes if isinstance(step, PackedOperator) else ()
            step.spec = step.spec.keeping(*stored).with_quantizers(**observers[name])
        with untouched(model), torch.no_grad():
            model.eval()
            for batch in batches:
                model(**batch)
    finally:
        for name, step in steps.items():
            step.spec = specs[name]
    return {
        name: {operand: observer.seen for operand, observer in found.items() if observer.has_seen}
        for name, found in observers.items()
    }


class _Observer(StandIn):
    """Keeps a sample of what passes and changes nothing."""

    def __init__(self) -> None:
        self.sample = Reservoir(MAX_SAMPLES)
        self.ends = torch.empty(0)

    def __call__(self, x: Tensor, gradient: Gradient = "identity") -> Tensor:
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
    def has_seen(self) -> bool:
        """False if nothing passed."""
        return self.sample.columns() is not None

    @property
    def seen(self) -> Tensor:
        """The sample, with the extremes where it may lack them."""
        sample = self.sample.columns()
        assert sample is not None
        return sample if self.sample.is_everything else torch.cat([self.ends, sample])


def _waiting(step: QuantizedOperator) -> list[str]:
    unfitted = [operand for operand, fmt in step.spec.items() if not fmt.is_fitted]
    held = dict(step.named_parameters(recurse=False))
    return [*unfitted, *(operand for operand in step.waiting if operand not in held)]


def basic_operators(model: nn.Module) -> dict[str, QuantizedOperator]:
    """By path, the quantised operators that are not made of smaller ones."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, QuantizedOperator)
        and not any(isinstance(child, QuantizedOperator) for child in module.children())
    }
