"""Jobs of the commands, each composed of the subpackages below."""

from chop.actions.emit.simulate import simulate
from chop.paths.not_built import test, train, transform

__all__ = [
    "simulate",
    "test",
    "train",
    "transform",
]
