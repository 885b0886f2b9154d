"""Layers under MASE's import path."""

from chop.nn.identity import Identity

__all__ = [
    "Identity",
]
