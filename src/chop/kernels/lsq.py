"""Kernels for learned scales (LSQ): rounding with given scales, gradients in one pass on CPUs."""

from __future__ import annotations

from ctypes import byref, c_float, c_int32, c_int64

import torch
from torch import Tensor

from chop.formats import NumberFormat, from_key
from chop.formats.lsq import in_use, learned_gradients
from chop.formats.operators import OPERATORS
from chop.kernels.base import fake_quantize
from chop.kernels.cpu.build import is_ready, library
from chop.kernels.cpu.fake_quantize import CPU_FAKE_QUANTIZE, plan_by_lines
from chop.kernels.cpu.measure import pointer
from chop.kernels.plan import get_layout
from chop.kernels.triton.register import CUDA_FAKE_QUANTIZE


def round_with_lsq(x: Tensor, scales: Tensor, key: str, is_batch: bool) -> Tensor:
    """Implements `chop::lsq_fake_quantize`."""
    return fake_quantize(x, from_key(key), scales=in_use(scales))


for kernel in (CPU_FAKE_QUANTIZE, CUDA_FAKE_QUANTIZE):
    OPERATORS.impl("lsq_fake_quantize", round_with_lsq, kernel.device.upper())


def gradients_in_one_pass(
    number_format: NumberFormat, grad: Tensor, x: Tensor, scales: Tensor
) -> tuple[Tensor | None, Tensor] | None:
    """Rounds and computes `chop.formats.lsq.gradients` with a different order of summation.

    Returns: the gradients, with None for a gradient of `x` that equals `grad`. None if the library
        does not round to the format.
    """
    loops, layout = library().library if is_ready() else None, get_layout(number_format)
    if loops is None or layout is None or not layout.element.follows:
        return None
    if x.dtype != torch.float32 or not x.is_cpu or not x.numel():
        return None
    inputs = [t.contiguous() for t in (grad, x, scales)]
    plan = plan_by_lines(number_format.fitted(x), inputs[1], scales)
    if plan is None:
        return None
    lines, has_beyond = scales.numel(), c_int32()
    x_gradient = torch.empty_like(inputs[1])  # takes no memory until it is written
    scale_gradients = torch.empty(lines, dtype=torch.float64)
    sizes = c_int64(lines), c_int64(x.numel() // lines)
    ends = c_float(layout.element.lowest), c_float(layout.element.highest)
    tensors = map(pointer, (*inputs, x_gradient, scale_gradients))
    threads = torch.get_num_threads()
    if loops.chop_lsq_gradients(byref(plan), *tensors, byref(has_beyond), *sizes, *ends, threads):
        return None
    # The loops leave out the common factor 1 / scale of each line.
    return x_gradient if has_beyond.value else None, scale_gradients.float() / scales


def _lsq_changed_gradients_on_cpu(
    grad: Tensor, x: Tensor, scales: Tensor, key: str, is_batch: bool
) -> tuple[Tensor, Tensor]:
    """Implements `chop::lsq_changed_gradients` on CPUs."""
    given = grad, x, scales, key, is_batch
    x_gradient, scale_gradients = learned_gradients(*given, gradients_in_one_pass)
    return torch.empty(0) if x_gradient is None else x_gradient, scale_gradients


def _lsq_gradients_on_cpu(
    grad: Tensor, x: Tensor, scales: Tensor, key: str, is_batch: bool
) -> tuple[Tensor, Tensor]:
    """Implements `chop::lsq_gradients` on CPUs."""
    given = grad, x, scales, key, is_batch
    x_gradient, scale_gradients = learned_gradients(*given, gradients_in_one_pass)
    return torch.empty_like(x).copy_(grad) if x_gradient is None else x_gradient, scale_gradients


OPERATORS.impl("lsq_gradients", _lsq_gradients_on_cpu, "CPU")
OPERATORS.impl("lsq_changed_gradients", _lsq_changed_gradients_on_cpu, "CPU")
