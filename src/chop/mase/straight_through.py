"""Building blocks of quantizers with straight-through gradients.

MASE's `chop.nn.quantizers.utils`: rounding, clamping, and binarization by a threshold.
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
    """Rounds to the nearest integer, ties to even; gradient 1."""
    return _replace_gradient(x, x.round())


def my_floor(x: Tensor) -> Tensor:
    """Rounds down; gradient 1."""
    return _replace_gradient(x, x.floor())


def my_ceil(x: Tensor) -> Tensor:
    """Rounds up; gradient 1."""
    return _replace_gradient(x, x.ceil())


def my_clamp(x: Tensor, min_value: float, max_value: float) -> Tensor:
    """Clamps between two bounds; gradient 1 within them, and 0 outside."""
    return x.clamp(min_value, max_value)


class BinaryBipolar:
    """Binarization to -1 below the threshold, else +1; gradient 1 for |x| <= 1, and 0 outside.

    >>> BinaryBipolar.apply(torch.tensor([-0.3, 0.2]), 0.0)
    tensor([-1.,  1.])
    """

    low = -1.0
    """The lower value; the upper one is 1."""

    @classmethod
    def apply(cls, x: Tensor, threshold: Tensor | float = 0.0) -> Tensor:
        """Binarizes each element.

        Args:
            x: any shape, a floating dtype; NaN is below every threshold.
            threshold: one, or one per element.
        """
        bits = torch.where(x >= threshold, 1.0, cls.low).to(x.dtype)
        return _replace_gradient(x.clamp(-1, 1), bits * cls.alpha(x.detach()))

    @staticmethod
    def alpha(x: Tensor) -> Tensor:
        """Returns the scale of the values: 1."""
        return x.new_ones(())


class BinaryZeroOne(BinaryBipolar):
    """Binarization to 0 below the threshold, else 1; the same gradient.

    >>> BinaryZeroOne.apply(torch.tensor([-0.3, 0.2]))
    tensor([0., 1.])
    """

    low = 0.0


def _mean_magnitude(x: Tensor) -> Tensor:
    """Returns the mean magnitude per index of the first axis (of a vector, of all); broadcasts."""
    dims = tuple(range(1 if x.dim() > 1 else 0, x.dim()))
    return x.abs().mean(dim=dims, keepdim=True)


class BinaryBipolarScaled(BinaryBipolar):
    """`BinaryBipolar` times the mean magnitude per index of the first axis."""

    alpha = staticmethod(_mean_magnitude)


class BinaryZeroScaled(BinaryZeroOne):
    """`BinaryZeroOne` times the mean magnitude per index of the first axis.

    MASE's version takes only four-dimensional tensors.

    >>> BinaryZeroScaled.apply(torch.tensor([[-1.0, 3.0], [0.5, 0.5]]))
    tensor([[0.0000, 2.0000],
            [0.5000, 0.5000]])
    """

    alpha = staticmethod(_mean_magnitude)


def _replace_gradient(x: Tensor, y: Tensor) -> Tensor:
    """Returns the values of `y` with the gradient of `x`, which may be infinite or NaN."""
    gradient = x - x.detach()
    return y.detach() + torch.where(torch.isfinite(gradient), gradient, 0.0)
