"""Steps that quantizers are written with, each with a straight-through gradient.

MASE's `chop.nn.quantizers.utils`: rounding, clamping, and one bit of a tensor by a threshold.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "BinaryBipolar",
    "BinaryBipolarScaled",
    "BinaryZeroOne",
    "BinaryZeroScaled",
    "my_ceil",
    "my_clamp",
    "my_floor",
    "my_round",
]


def my_round(x: Tensor) -> Tensor:
    """To the nearest integer, ties to even; gradient 1."""
    return _replace_gradient(x, x.round())


def my_floor(x: Tensor) -> Tensor:
    """To the integer below; gradient 1."""
    return _replace_gradient(x, x.floor())


def my_ceil(x: Tensor) -> Tensor:
    """To the integer above; gradient 1."""
    return _replace_gradient(x, x.ceil())


def my_clamp(x: Tensor, min_value: float, max_value: float) -> Tensor:
    """Between two bounds; gradient 1 within them, and 0 beyond."""
    return x.clamp(min_value, max_value)


class BinaryBipolar:
    """-1 below the threshold, +1 from it on; gradient 1 for |x| <= 1, and 0 beyond.

    >>> BinaryBipolar.apply(torch.tensor([-0.3, 0.2]), 0.0)
    tensor([-1.,  1.])
    """

    low = -1.0
    """The lower value, of which 1 is the upper one."""

    @classmethod
    def apply(cls, x: Tensor, threshold: Tensor | float = 0.0) -> Tensor:
        """One bit of each element.

        Args:
            x: any shape, a floating dtype; NaN is below every threshold.
            threshold: one, or one for each element.
        """
        bits = torch.where(x >= threshold, 1.0, cls.low).to(x.dtype)
        return _replace_gradient(x.clamp(-1, 1), bits * cls.alpha(x.detach()))

    @staticmethod
    def alpha(x: Tensor) -> Tensor:
        """The scale of the values: 1."""
        return x.new_ones(())


class BinaryZeroOne(BinaryBipolar):
    """0 below the threshold, 1 from it on; the same gradient.

    >>> BinaryZeroOne.apply(torch.tensor([-0.3, 0.2]))
    tensor([0., 1.])
    """

    low = 0.0


def _mean_magnitude(x: Tensor) -> Tensor:
    """The mean magnitude of each index of the first axis, of a vector that of all: broadcasts."""
    dims = tuple(range(1 if x.dim() > 1 else 0, x.dim()))
    return x.abs().mean(dim=dims, keepdim=True)


class BinaryBipolarScaled(BinaryBipolar):
    """The same as `BinaryBipolar`, times the mean magnitude of each index of the first axis."""

    alpha = staticmethod(_mean_magnitude)


class BinaryZeroScaled(BinaryZeroOne):
    """The same as `BinaryZeroOne`, times the mean magnitude of each index of the first axis.

    MASE's takes tensors of four dimensions alone.

    >>> BinaryZeroScaled.apply(torch.tensor([[-1.0, 3.0], [0.5, 0.5]]))
    tensor([[0.0000, 2.0000],
            [0.5000, 0.5000]])
    """

    alpha = staticmethod(_mean_magnitude)


def _replace_gradient(x: Tensor, y: Tensor) -> Tensor:
    """The values of `y` with the gradient of `x`, which may be infinite or NaN."""
    gradient = x - x.detach()
    return y.detach() + torch.where(torch.isfinite(gradient), gradient, 0.0)
