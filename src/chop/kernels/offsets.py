"""Kernels for learned rounding: rounded values, and steps of offsets, in one pass on CPUs."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int64, c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

from chop.kernels.cpu.build import is_ready, library
from chop.kernels.cpu.measure import pointer

LARGEST_CODE = 2**22
"""Magnitude of elements up to which the loops round exactly."""
LARGEST_GROUP = 2**13
"""Values of a group that remain in the cache between two loops."""


class _Weight(ctypes.Structure):
    """Addresses and sizes of a weight. `cpu/offsets.cpp` documents the fields."""

    _fields_ = (
        *((name, c_void_p) for name in ("points", "offsets", "ratios", "zeros", "anchors")),
        *((name, c_void_p) for name in ("least", "held", "elements")),
        *((name, c_int64) for name in ("groups", "size")),
        *((name, c_float) for name in ("low", "high")),
    )


@dataclass(frozen=True, eq=False)
class Offsets:
    """Rounding offsets of one weight as G groups of N values, in steps of the initial scales.

    Attributes:
        points: positions of the float values minus zero points, float32 (G, N).
        offsets: float32 (G, N), which `learn` changes.
        zeros: zero points, float32 (G, 1), or None.
        anchors: int64 (G, 1), position of the value that determines the scale, or None.
        least: smallest element at the anchor with its sign, float32 (G, 1); 0 for no limit.
        held: boolean (G, N), True for values that keep their element, or None.
        elements: these elements minus zero points, float32 (G, N).
        low: smallest element.
        high: largest element.
    """

    points: Tensor
    offsets: Tensor
    zeros: Tensor | None
    anchors: Tensor | None
    least: Tensor | None
    held: Tensor | None
    elements: Tensor | None
    low: float
    high: float

    def values(self, ratios: Tensor | None, scales: Tensor) -> Tensor | None:
        """Returns the rounded values, float32 (G, N); None without a library for them.

        Args:
            ratios: ratio of each scale to the initial one, float32 (G, 1); None for constant ones.
            scales: current scales, float32 (G, 1).
        """
        loops, values = self._loops(), torch.empty_like(self.points)
        if loops is None:
            return None
        scales, threads = scales.contiguous(), torch.get_num_threads()
        loops.chop_values_with_offsets(
            byref(self._weight(ratios)), pointer(scales), pointer(values), threads
        )
        return values

    def learn(
        self, ratios: Tensor | None, gradient: Tensor, scale_signs: Tensor, rate: float
    ) -> Tensor | None:
        """Takes one step of the offsets against the signs of a gradient.

        Args:
            ratios: see `values`.
            gradient: gradient of the loss with respect to `values`, floating (G, N).
            scale_signs: signs of the scales, float32 (G, 1).
            rate: step size of the offsets.
        Returns: the signs of the gradients of the ratios, float32 (G, 1), zeros for constant ones.
            None without a library for the step, in which case the offsets are unchanged.
        """
        loops, signs = self._loops(), torch.empty_like(scale_signs)
        if loops is None:
            return None
        tensors = gradient.float().contiguous(), scale_signs.contiguous(), signs
        weight, threads = self._weight(ratios), torch.get_num_threads()
        loops.chop_learn_offsets(byref(weight), *map(pointer, tensors), c_float(rate), threads)
        return signs

    def _loops(self) -> ctypes.CDLL | None:
        """Returns the library if it can round this weight."""
        count, size = self.points.shape
        fits = self.points.is_cpu and self.points.dtype == torch.float32
        fits = (
            fits
            and count > 0
            and 0 < size <= LARGEST_GROUP
            and max(-self.low, self.high) <= LARGEST_CODE
        )
        return library().library if fits and is_ready() else None

    def _weight(self, ratios: Tensor | None) -> _Weight:
        grid = self.zeros, self.anchors, self.least, self.held, self.elements
        tensors = self.points, self.offsets, ratios, *grid
        assert all(x is None or x.is_contiguous() for x in tensors)
        return _Weight(*map(pointer, tensors), *self.points.shape, self.low, self.high)
