"""Turns formats that wait for data into fixed ones, from what really flows through the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
        batches: inputs of the model by name, one mapping per batch; inputs that the graph does
            not have are ignored.
    """

    batches: Batches


@graph_pass(config=CalibrateConfig, requires=("quantize_transform_pass",))
def calibrate_transform_pass(mg: MaseGraph, config: CalibrateConfig) -> dict[str, Any]:
    """Fits every format with a derived field to the values that reach it in `batches`.

    Learned scales of inputs and results start from these values too.

    The model runs in eval mode with all quantizers off, so that one layer's error does not
    disturb the next one's range. Extremes are kept exactly; of more than 131,072
    values of an operand, a uniform sample.

    Returns:
        fitted: number of operands fitted.
    """
    steps = leaf_operators(mg.model)
    wanted = {name: _waiting(step) for name, step in steps.items()}
    batches = select_inputs(mg, config.batches, "calibrate_transform_pass.batches")
    samples = sample_operands(mg.model, batches, wanted)
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


def _waiting(step: QuantizedOperator) -> list[str]:
    unfitted = [operand for operand, fmt in step.spec.items() if not fmt.is_fitted]
    held = dict(step.named_parameters(recurse=False))
    return [*unfitted, *(operand for operand in step.waiting if operand not in held)]
