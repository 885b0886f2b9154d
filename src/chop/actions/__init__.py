"""What the commands do: whole jobs made of the subpackages below."""

from chop.not_built import simulate, test, train, transform

__all__ = [
    "simulate",
    "test",
    "train",
    "transform",
]
