"""`float`: the identity format, which spares operators a special case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from chop.formats.base import NumberFormat
from chop.formats.encoded import Encoded
from chop.formats.quantizer import Gradient


@dataclass(frozen=True)
class Float(NumberFormat):
    """Identity format: values are not changed.

    Storage is counted as 32 bits, the width of a float32 parameter.
    """

    name: ClassVar[str] = "float"
    aliases: ClassVar[tuple[str, ...]] = ("fp32",)

    def round(self, x: Tensor) -> Tensor:
        """Returns `x` itself.

        >>> Float().round(torch.tensor([0.1]))
        tensor([0.1000])
        """
        return x

    def __call__(self, x: Tensor, gradient: Gradient = "identity") -> Tensor:
        """Returns `x` itself, without a node in the graph."""
        return x

    def bits(self, shape: Sequence[int] = ()) -> float:
        """Returns 32."""
        return 32.0

    def encode(self, x: Tensor) -> Encoded:
        """Returns the bytes of `x`."""
        return Encoded(x.detach().contiguous().view(-1).view(torch.uint8), x.shape, x.dtype)

    def decode(self, encoded: Encoded) -> Tensor:
        """Returns the tensor stored in the bytes."""
        return encoded.codes.view(encoded.dtype).view(encoded.shape)

    def saturates(self, x: Tensor) -> Tensor:
        """Returns False for every value."""
        return torch.zeros_like(x, dtype=torch.bool)

    @property
    def is_identity(self) -> bool:
        """True."""
        return True

    @property
    def label(self) -> str:
        """`float`."""
        return self.name
