"""Packed tensors as the operators take them, and bits that are the same."""

import torch

from chop.kernels.codes import Packed


def same(a, b):
    both_nan = a.isnan() & b.isnan()
    return a.dtype == b.dtype and bool(((a == b) & (a.signbit() == b.signbit()) | both_nan).all())


def parts(encoded, fmt):
    shape = list(encoded.shape)
    return Packed(encoded.codes, encoded.scales, encoded.tensor_scale, shape, fmt.key)


def packed_linear(x, x_format, encoded, fmt, bias=None):
    """By loops where this CPU has instructions for them, otherwise by the reference."""
    return torch.ops.chop.packed_linear(x, x_format.key, *parts(encoded, fmt), bias, False)
