"""Jobs of the commands, built from the packages below."""

from chop.actions.emit.simulate import simulate
from chop.paths.not_built import test, train, transform

__all__ = [
    "simulate",
    "test",
    "train",
    "transform",
]
