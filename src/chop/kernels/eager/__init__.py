"""Kernels in PyTorch alone, for machines and formats that have no other."""

from chop.kernels.eager.fake_quantize import round_eagerly

__all__ = [
    "round_eagerly",
]
