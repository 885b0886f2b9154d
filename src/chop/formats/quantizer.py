"""Quantizer: the interface of a number format or a temporary stand-in in a `QuantSpec`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Literal, final, get_args

import torch
from torch import Tensor

Gradient = Literal["identity", "clip", "lsq"]
"""Gradient of a fake-quantizer: `identity` passes it unchanged, `clip` stops it at saturated
values, `lsq` also computes gradients for learned scales (see `chop.formats.lsq`).
"""
GRADIENTS = get_args(Gradient)


class Quantizer(ABC):
    """Interface with which a quantized operator quantizes one of its operands.

    `NumberFormat` is a quantizer that tensors can be stored in. `StandIn` is the base of temporary
    quantizers, used while a model is observed or exported.
    """

    neutral: float = 0.0
    """Number that does not affect the rounding of other numbers in its tensor."""
    ignores_zeros: bool = False
    """True if zeros stay zeros and do not affect the rounding of other numbers."""

    @abstractmethod
    def __call__(self, x: Tensor, gradient: Gradient = "identity") -> Tensor:
        """Returns the operand that the operator computes with.

        Args:
            x: any shape, floating.
            gradient: gradient of the rounding.
        Returns: tensor of the shape and dtype of `x`.
        """

    @abstractmethod
    def fitted(self, samples: Tensor) -> Quantizer:
        """Returns this quantizer with all data-dependent fields derived from `samples`."""

    def derived_number(self, fitted: Quantizer) -> float:
        """Returns the number that a fit of this quantizer derived, for a state dict.

        Args:
            fitted: result of `fitted`.
        """
        return 0.0

    def with_derived(self, number: float, largest: float) -> Quantizer:
        """Returns the fit that a state dict describes; by default a fit to the range only.

        Args:
            number: result of `derived_number`.
            largest: largest magnitude of the samples.
        """
        return self.fitted(torch.tensor([-largest, largest]))

    @property
    @abstractmethod
    def is_fitted(self) -> bool:
        """False if a field is still to be derived from data."""

    @property
    @abstractmethod
    def is_identity(self) -> bool:
        """True if calls have no effect and may be omitted."""

    @property
    @abstractmethod
    def cache_key(self) -> Hashable | None:
        """Key that quantizers with equal results share; None if results must not be cached."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Short text for tables, pictures and messages."""


class StandIn(Quantizer):
    """Quantizer that is not a number format: an observer, a gradient tap, an exported operator.

    Subclasses define `__call__`, which receives every tensor of the operand. Files cannot store a
    stand-in.
    """

    is_fitted = True
    is_identity = False
    cache_key = None

    @final
    def fitted(self, samples: Tensor) -> Quantizer:
        """Returns itself: a stand-in has no fields to derive."""
        return self

    @property
    def label(self) -> str:
        """Name of the class."""
        return type(self).__name__
