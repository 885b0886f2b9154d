"""Operators that do the work of two."""

from chop.nn.fused.linear_activation import ACTIVATIONS, LinearActivation

__all__ = [
    "ACTIVATIONS",
    "LinearActivation",
]
