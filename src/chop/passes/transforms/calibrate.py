"""Calibration: formats with pending fields become fixed, from values on batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from chop.formats import NumberFormat
from chop.formats.static import is_dynamic, static_format
from chop.ir.annotate import record_formats
from chop.ir.batches import Batches, select_inputs
from chop.ir.graph import MaseGraph
from chop.nn.quantized import QuantizedOperator, leaf_operators
from chop.passes.base import graph_pass
from chop.quantization.calibration import sample_operands


@dataclass(frozen=True)
class CalibrateConfig:
    """Settings of `calibrate_transform_pass`.

    Attributes:
        batches: inputs of the model by name, one mapping per batch; other inputs than the graph's
            are ignored.
        static_scales: fixes per-tensor scales of activations (`scale_integer` and `fp8` with
            granularity `tensor`, `binary_residual`, and the tensor scale of `nvfp4`), which are
            then computed from all values in `batches`.
    """

    batches: Batches
    static_scales: bool = False


@graph_pass(config=CalibrateConfig, requires=("quantize_transform_pass",))
def calibrate_transform_pass(mg: MaseGraph, config: CalibrateConfig) -> dict[str, Any]:
    """Fits every format with a derived field to the values of its operand in `batches`.

    Learned scales of inputs and results are also initialized from these values, learned scales of
    weights from the weights.

    The model runs in eval mode with all quantizers off, so the error of one layer does not affect
    the range of the next. Extremes are exact; beyond 131,072 values of an operand, a uniform sample
    is used. Masked tokens are excluded. NaN is also excluded, with a warning that names the row.

    Returns:
        fitted: number of operands fitted.
        static: number of activations with fixed scales.
        dynamic: number of activations with scales that still depend on each tensor or its parts.

    Example config::

        {"batches": [{"input_ids": ids, "attention_mask": mask}], "static_scales": True}
    """
    steps = leaf_operators(mg.model)
    wanted = {name: _waiting(step) for name, step in steps.items()}
    if config.static_scales:
        wanted = {name: [*wanted[name], *_dynamic(step)] for name, step in steps.items()}
    batches = select_inputs(mg, config.batches, "calibrate_transform_pass.batches")
    samples = sample_operands(mg.model, batches, wanted)
    fitted = static = 0
    for name, step in steps.items():
        seen = samples.get(name, {})
        fixed = _static(step, seen)
        fitted += len(seen.keys() & set(_waiting(step)))
        static += len(fixed)
        waiting = step.waiting
        step.take_spec(step.spec.fitted(seen).with_quantizers(**fixed))
        for operand in waiting:
            if operand in seen:
                step.start_scales(operand, seen[operand])
            elif operand in dict(step.named_parameters(recurse=False)):
                step.start_scales(operand, step.effective(operand))
    for node in mg.nodes:
        called = mg.get_module(node)
        if isinstance(called, QuantizedOperator):
            record_formats(node, called)
    dynamic = sum(len(_dynamic(step)) for step in steps.values())
    return {"fitted": fitted, "static": static, "dynamic": dynamic}


def _waiting(step: QuantizedOperator) -> list[str]:
    unfitted = [operand for operand, fmt in step.spec.items() if not fmt.is_fitted]
    held = dict(step.named_parameters(recurse=False))
    return [*unfitted, *(operand for operand in step.waiting if operand not in held)]


def _dynamic(step: QuantizedOperator) -> list[str]:
    """Returns the activations with data-dependent scales that are not learned."""
    held = dict(step.named_parameters(recurse=False))
    return [
        operand
        for operand, quantizer in step.spec.items()
        if isinstance(quantizer, NumberFormat) and is_dynamic(quantizer)
        if operand not in held and not step.spec.learns(operand)
    ]


def _static(step: QuantizedOperator, samples: Mapping[str, Tensor]) -> dict[str, NumberFormat]:
    """Returns the formats of sampled activations with constant scales."""
    formats = {
        operand: static_format(step.spec.number_format(operand), samples[operand])
        for operand in _dynamic(step)
        if operand in samples
    }
    return {operand: fixed for operand, fixed in formats.items() if fixed is not None}
