"""Kernels for learned scales (LSQ): rounding with given scales, gradients in one pass on CPUs."""

from __future__ import annotations

from ctypes import c_float, c_int64

import torch
from torch import Tensor

from chop.formats import from_key
from chop.formats.layout import Layout
from chop.formats.lsq import gradients, in_use, learned_gradients
from chop.kernels.base import fake_quantize
from chop.kernels.cpu.build import is_ready, library
from chop.kernels.cpu.fake_quantize import CPU_FAKE_QUANTIZE
from chop.kernels.cpu.measure import pointer
from chop.kernels.triton.register import CUDA_FAKE_QUANTIZE


def round_with_lsq(x: Tensor, scales: Tensor, key: str, is_batch: bool) -> Tensor:
    """Implements `chop::lsq_fake_quantize`."""
    return fake_quantize(x, from_key(key), scales=in_use(scales))


for kernel in (CPU_FAKE_QUANTIZE, CUDA_FAKE_QUANTIZE):
    torch.library.register_kernel("chop::lsq_fake_quantize", kernel.device, round_with_lsq)


def gradients_in_one_pass(
    layout: Layout, grad: Tensor, x: Tensor, rounded: Tensor, scales: Tensor
) -> tuple[Tensor, Tensor]:
    """Computes `chop.formats.lsq.gradients` with a different order of summation."""
    loops = library().library if is_ready() else None
    takes = x.dtype == torch.float32 and x.is_cpu and x.numel() > 0 and layout.levels is None
    if loops is None or not takes or not layout.element.follows:
        return gradients(layout, grad, x, rounded, scales)
    inputs = [t.contiguous() for t in (grad, x, rounded, scales)]
    lines = scales.numel()
    x_gradient = torch.empty_like(inputs[1])
    scale_gradients = torch.empty(lines, dtype=torch.float64)
    sizes = c_int64(lines), c_int64(x.numel() // lines)
    ends = c_float(layout.element.lowest), c_float(layout.element.highest)
    tensors = map(pointer, (*inputs, x_gradient, scale_gradients))
    loops.chop_lsq_gradients(*tensors, *sizes, *ends, torch.get_num_threads())
    # The loops leave out the common factor 1 / scale of each line.
    return x_gradient, scale_gradients.float() / scales


def _lsq_gradients_on_cpu(
    grad: Tensor, x: Tensor, scales: Tensor, key: str, is_batch: bool
) -> tuple[Tensor, Tensor]:
    """Implements `chop::lsq_gradients` on CPUs."""
    return learned_gradients(grad, x, scales, key, is_batch, gradients_in_one_pass)


torch.library.register_kernel("chop::lsq_gradients", "cpu", _lsq_gradients_on_cpu)
