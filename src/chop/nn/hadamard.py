"""Online rotation of a layer's input by a Hadamard transform.

Source: QuaRot, Ashkboos et al. 2024, arXiv:2404.00456, section 4: the rotations that cannot be
merged into a previous weight.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from chop.errors import ConfigError
from chop.kernels.hadamard import hadamard_factors, hadamard_transform, largest_block


class Hadamard(nn.Module):
    """`hadamard_transform(input, block)`; input (..., features), no parameters.

    Args:
        features: size of the last input dimension.
        block: number of neighbors rotated together. Default: the largest known order that divides
            the features.

    Raises:
        ConfigError: if no Hadamard matrix of that order is known, or it does not divide the
            features.
    """

    def __init__(self, features: int, block: int | None = None) -> None:
        super().__init__()
        self.features = features
        self.block = largest_block(features) if block is None else block
        if self.block < 1 or features % self.block or hadamard_factors(self.block) is None:
            raise ConfigError(
                f"Hadamard: expected blocks of a known order that divides {features} features, got "
                f"{self.block}; the largest is {largest_block(features)}."
            )

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        return hadamard_transform(input, self.block)

    def extra_repr(self) -> str:
        """Returns the sizes."""
        return f"{self.features}, block={self.block}"


class Rotated(nn.Sequential):
    """`linear(rotation(input))`, the replacement of a linear layer with a rotated weight.

    State dicts store the layer's tensors below `linear`, which distinguishes rotated weights from
    others.

    Args:
        rotation: rotation of the input.
        linear: the layer: float, quantized or packed.
    """

    def __init__(self, rotation: Hadamard, linear: nn.Module) -> None:
        super().__init__()
        self.rotation = rotation
        self.linear: Any = linear
