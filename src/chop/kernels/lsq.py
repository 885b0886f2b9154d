"""Rounding by scales that are being learned, by the kernels that round by given ones."""

from __future__ import annotations

import torch
from torch import Tensor

from chop.formats import from_key
from chop.formats.lsq import in_use
from chop.kernels.base import fake_quantize
from chop.kernels.cpu.fake_quantize import CPU_FAKE_QUANTIZE
from chop.kernels.triton.register import CUDA_FAKE_QUANTIZE


def round_with_lsq(x: Tensor, scales: Tensor, key: str, is_batch: bool) -> Tensor:
    """The implementation of `chop::lsq_fake_quantize`."""
    return fake_quantize(x, from_key(key), scales=in_use(scales))


for kernel in (CPU_FAKE_QUANTIZE, CUDA_FAKE_QUANTIZE):
    torch.library.register_kernel("chop::lsq_fake_quantize", kernel.device, round_with_lsq)
