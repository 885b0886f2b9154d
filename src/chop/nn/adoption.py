"""Adoption: moves all contents of a module into a module of another class, without copies."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

from chop.captured.overrides import why_not_its_class
from chop.errors import ConfigError
from chop.private.modules import COMPILED

M = TypeVar("M", bound=nn.Module)


def adopt(cls: type[M], module: nn.Module, **changed: Any) -> M:
    """Returns a module of class `cls` with the parameters, buffers, hooks and mode of `module`.

    Code compiled by `module.compile()` is dropped, since it computes the original.

    Args:
        cls: the class, whose constructor is not run.
        module: the source; do not use it afterwards.
        changed: replaced entries of the new module's `__dict__`.

    Raises:
        ConfigError: if the module's forward was replaced on the instance, which would hide that of
            the class.
    """
    reason = why_not_its_class(module)
    if reason is not None:
        raise ConfigError(f"cannot convert a {type(module).__name__} to {cls.__name__}: {reason}.")
    twin = cls.__new__(cls)
    twin.__dict__.update({name: x for name, x in vars(module).items() if name != COMPILED})
    twin.__dict__.update(changed)
    return twin
