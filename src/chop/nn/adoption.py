"""Adoption: a module of another class takes over all that a module has, without copies."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

from chop.captured.overrides import why_not_its_class
from chop.errors import ConfigError
from chop.private.modules import COMPILED

M = TypeVar("M", bound=nn.Module)


def adopt(cls: type[M], module: nn.Module, **changed: Any) -> M:
    """A module of class `cls` with what `module` has: parameters, buffers, hooks, attributes, mode.

    What `module.compile()` has made stays behind: it would go on computing what `module` does.

    Args:
        cls: the class, whose constructor is not run.
        module: use it no more.
        changed: entries of the new module's `__dict__` that differ.

    Raises:
        ConfigError: the module's forward was replaced on the instance, which would be called in
            the place of the class's own.
    """
    reason = why_not_its_class(module)
    if reason is not None:
        raise ConfigError(f"a {cls.__name__} cannot take a {type(module).__name__} over: {reason}.")
    twin = cls.__new__(cls)
    twin.__dict__.update({name: x for name, x in vars(module).items() if name != COMPILED})
    twin.__dict__.update(changed)
    return twin
