"""Calibration: observers that sample the operands of quantized operators."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from chop.captured.padding.hidden import following, hidden_elements
from chop.captured.state.preserve_state import preserve_state
from chop.formats import Gradient, StandIn
from chop.ir.rows import non_finite_rows
from chop.nn.packed import PackedOperator
from chop.nn.quantized import leaf_operators
from chop.statistics import Reservoir

MAX_SAMPLES = 2**17


def sample_operands(
    model: nn.Module, batches: Iterable[Mapping[str, Any]], wanted: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Tensor]]:
    """Samples operands of quantized operators while all quantizers are off.

    Parameters stored as codes have their rounded values. Elements of masked tokens are skipped, see
    `chop.captured.padding.hidden`.

    Args:
        model: runs in eval mode without gradients; its mode is restored.
        batches: inputs of the model by name.
        wanted: operands by the path of an operator, see `leaf_operators`.
    Returns: by path and operand float32 (n,): a uniform sample of at most 131,072 finite values,
    and their extremes. Operands without values are omitted.
    """
    steps = leaf_operators(model)
    specs = {name: step.spec for name, step in steps.items()}
    observers = {name: {operand: _Observer() for operand in wanted.get(name, ())} for name in steps}
    try:
        for name, step in steps.items():
            stored = step.packed_shapes if isinstance(step, PackedOperator) else ()
            step.spec = step.spec.keeping(*stored).with_quantizers(**observers[name])
        with preserve_state(model), torch.no_grad():
            model.eval()
            for number, batch in enumerate(batches):
                with following(model, batch) as inputs:
                    model(**inputs)
                _warn_about_nan(observers, number)
    finally:
        for name, step in steps.items():
            step.spec = specs[name]
    return {
        name: {operand: observer.seen for operand, observer in own.items() if observer.has_seen}
        for name, own in observers.items()
    }


def _warn_about_nan(observers: Mapping[str, Mapping[str, _Observer]], number: int) -> None:
    """Warns once about a batch with NaN, for the first affected operand."""
    met = [
        (path, operand, observer.nan_row)
        for path, own in observers.items()
        for operand, observer in own.items()
        if observer.nan_row is not None
    ]
    for own in observers.values():
        for observer in own.values():
            observer.nan_row = None
    if met:
        path, operand, row = met[0]
        warnings.warn(
            f"calibration: row {row} of batch {number} causes NaN in {operand} of '{path}'; "
            "formats are fitted to the other values. Remove this row.",
            stacklevel=3,
        )


class _Observer(StandIn):
    """Observer that samples its input and returns it unchanged."""

    neutral = -math.inf  # what is not finite is left out

    def __init__(self) -> None:
        self.sample = Reservoir(MAX_SAMPLES)
        self.ends = torch.empty(0)
        self.nan_row: int | None = None

    def __call__(self, x: Tensor, gradient: Gradient = "identity") -> Tensor:
        hidden = hidden_elements(x)
        values = (x.detach() if hidden is None else x.detach()[~hidden]).float().reshape(-1)
        if not values.numel():
            return x
        ends = torch.stack(values.aminmax())
        if not ends.isfinite().all():
            if self.nan_row is None and bool(values.isnan().any()):
                nan = x.isnan() if hidden is None else x.isnan() & ~hidden
                self.nan_row = int(non_finite_rows(torch.where(nan, x.detach(), 0))[0])
            values = values[values.isfinite()]
            ends = torch.stack(values.aminmax()) if values.numel() else ends[:0]
        both = torch.cat([self.ends.to(ends), ends])
        self.ends = torch.stack(both.aminmax()) if both.numel() else both
        self.sample.add(values)
        return x

    @property
    def has_seen(self) -> bool:
        """True if values were observed."""
        return self.sample.columns() is not None

    @property
    def seen(self) -> Tensor:
        """The sample with the extremes, which it may lack."""
        sample = self.sample.columns()
        assert sample is not None
        return sample if self.sample.is_everything else torch.cat([self.ends, sample])
