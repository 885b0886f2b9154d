"""Comparison of results that were rounded on the way: true on every processor.

Processors add floats up in different orders, so sums differ in their last bits. What is rounded
next is mostly the same; but where a number lies within its own error of a tie, either neighbor is
right, and so is whatever follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from chop.nn.packed import PackedLinear, PackedOperator
from chop.nn.quantized import QuantizedOperator

ERROR = 2.0**-20
"""Of a float32 sum of some hundred terms, as a share of the largest magnitude beside it."""
RUNS = 8


@contextmanager
def nudged(seed: int) -> Iterator[None]:
    """Inside, what quantized operators are about to round is off by its error, up or down.

    Parameters are exact, and so are zeros, such as those of a ReLU.
    """
    draw = torch.Generator().manual_seed(seed)

    def nudging(quantize):
        def quantize_nudged(self, operand, x, hidden=None):
            # Where masked scores are left out, it calls itself for the visible ones.
            is_nudged = hidden is None and is_computed(self, operand, x)
            return quantize(self, operand, nudge(x) if is_nudged else x, hidden)

        return quantize_nudged

    def nudge(x):
        signs = torch.randint(0, 2, x.shape, generator=draw) * 2 - 1
        largest = torch.where(x.isfinite(), x, 0).abs().amax()
        return x + (signs * (x != 0) * ERROR * largest).to(x.dtype)

    with pytest.MonkeyPatch.context() as patch:
        for kind in (QuantizedOperator, PackedOperator):
            patch.setattr(kind, "quantize", nudging(kind.quantize))
        # It rounds its input within one call.
        patch.setattr(PackedLinear, "_prepared_result", lambda *_: None)
        yield


def is_computed(module: QuantizedOperator, operand: str | None, x: object) -> bool:
    """Whether an operand is a tensor of floats, not empty, and no parameter."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or not x.numel():
        return False
    is_packed = isinstance(module, PackedOperator) and operand in module.packed_shapes
    return not is_packed and not isinstance(x, nn.Parameter)


@torch.no_grad()
def agree(found: Tensor, run: Callable[[], Tensor], error: float = ERROR) -> bool:
    """Whether `found` is what `run` returns, or another processor might.

    Each number has to lie where those of some runs lie that round to either side of each tie, as
    far again on both sides, and within the error of the last sum.

    Args:
        found: any shape, floating.
        run: computes the same with quantized operators.
        error: of a number that is not rounded, as a share of the largest magnitude.
    """
    runs = [run()]
    for seed in range(RUNS):
        with nudged(seed):
            runs.append(run())
    low, high = (edge(torch.stack(runs), 0) for edge in (torch.amin, torch.amax))
    slack = high - low + error * high.abs().amax()
    if found.shape != low.shape or found.dtype != low.dtype:
        return False
    return bool(((low - slack <= found) & (found <= high + slack)).all())
