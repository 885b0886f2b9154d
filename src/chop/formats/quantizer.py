"""Quantizer: the content of a slot of `QuantSpec`, a number format or its temporary stand-in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Literal, final, get_args

import torch
from torch import Tensor

Gradient = Literal["identity", "clip", "lsq"]
"""How a gradient passes a fake-quantizer: unchanged; zero where the value saturated; or also to
the scales, where they are learned (see `chop.formats.lsq`), and unchanged elsewhere."""
GRADIENTS = get_args(Gradient)


class Quantizer(ABC):
    """What a quantized operator asks of what quantizes one of its operands.

    `NumberFormat` is one that tensors can be stored in: it adds bits and codes. `StandIn` is the
    base of those that are there while a model is observed or exported.
    """

    neutral: float = 0.0
    """A number that changes nothing of how the others of its tensor are rounded."""
    ignores_zeros: bool = False
    """True where zeros stay zeros, and change nothing of how other numbers are rounded."""

    @abstractmethod
    def __call__(self, x: Tensor, gradient: Gradient = "identity") -> Tensor:
        """The operand as the operator computes with it.

        Args:
            x: any shape, floating.
            gradient: how the gradient passes.
        Returns: same shape and dtype as `x`.
        """

    @abstractmethod
    def fitted(self, samples: Tensor) -> Quantizer:
        """This quantizer with every field that waits for data derived from `samples`."""

    def derived_number(self, fitted: Quantizer) -> float:
        """The number that a fit of this quantizer has derived, for a state dict.

        Args:
            fitted: result of `fitted`.
        """
        return 0.0

    def with_derived(self, number: float, largest: float) -> Quantizer:
        """The fit that a state dict describes; by default one to the range alone.

        Args:
            number: from `derived_number`.
            largest: the largest magnitude of the samples.
        """
        return self.fitted(torch.tensor([-largest, largest]))

    @property
    @abstractmethod
    def is_fitted(self) -> bool:
        """False while a field still waits for `fitted`."""

    @property
    @abstractmethod
    def is_identity(self) -> bool:
        """True for what changes nothing and sees nothing, so that calls may be left out."""

    @property
    @abstractmethod
    def cache_key(self) -> Hashable | None:
        """Equal for quantizers of equal results; None where a result must not be used again."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Short text for tables, pictures and messages."""


class StandIn(Quantizer):
    """A quantizer that is no number format: an observer, a gradient tap, an exported operator.

    A subclass defines `__call__`, which sees every tensor that reaches its operand. Files cannot
    hold one.
    """

    is_fitted = True
    is_identity = False
    cache_key = None

    @final
    def fitted(self, samples: Tensor) -> Quantizer:
        """Itself: it waits for nothing."""
        return self

    @property
    def label(self) -> str:
        """The name of its class."""
        return type(self).__name__
