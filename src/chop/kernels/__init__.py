"""Kernels: fast implementations of chop's operators, each tested against a readable reference.

Importing this package registers them for their devices.
"""

from chop.kernels.base import (
    KERNELS,
    Kernel,
    fake_quantize,
    fake_quantize_directly,
    fake_quantize_marking,
)
from chop.kernels.cpu.fake_quantize import CPU_FAKE_QUANTIZE
from chop.kernels.lowest import drop, drop_lowest, lowest_magnitudes
from chop.kernels.lsq import round_with_lsq
from chop.kernels.packed import decode, packed_linear, packed_linear_directly
from chop.kernels.searches import searched_scales
from chop.kernels.triton.register import CUDA_FAKE_QUANTIZE

__all__ = [
    "CPU_FAKE_QUANTIZE",
    "CUDA_FAKE_QUANTIZE",
    "KERNELS",
    "Kernel",
    "decode",
    "drop",
    "drop_lowest",
    "fake_quantize",
    "fake_quantize_directly",
    "fake_quantize_marking",
    "lowest_magnitudes",
    "packed_linear",
    "packed_linear_directly",
    "round_with_lsq",
    "searched_scales",
]
