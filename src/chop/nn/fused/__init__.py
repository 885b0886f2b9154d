"""Fused operators, which compute two operators in one pass."""

from chop.nn.fused.linear_activation import ACTIVATIONS, LinearActivation

__all__ = [
    "ACTIVATIONS",
    "LinearActivation",
]
