"""Attribute access by dotted path."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn

from chop.config import with_checked_arguments
from chop.errors import ConfigError, did_you_mean

MISSING = object()
"""Value of an attribute that does not exist."""


@with_checked_arguments
def deepgetattr(obj: Any, attr: str, default: Any = None) -> Any:
    """Returns the attribute at a dotted path, or `default` if the path ends early.

    >>> import torch
    >>> deepgetattr(torch.nn.Sequential(torch.nn.Linear(2, 3)), "0.out_features")
    3
    """
    try:
        return functools.reduce(getattr, attr.split("."), obj)
    except AttributeError:
        return default


@with_checked_arguments
def deepsetattr(obj: Any, attr: str, value: Any) -> None:
    """Sets the attribute at a dotted path, for instance to replace a layer of a model.

    Args:
        obj: root of the path.
        attr: dotted path, such as `"bert.encoder.layer.0.output.dense"`.
        value: new value.
    Raises:
        ConfigError: if the path does not exist. The message suggests the nearest name.
    """
    path = attr.split(".")
    holder = obj
    for depth, name in enumerate(path):
        holder, obj = obj, getattr(obj, name, MISSING)
        if obj is MISSING:
            where = ".".join(path[:depth]) or type(holder).__name__
            raise ConfigError(f"'{where}' has no '{name}': {did_you_mean(name, _names(holder))}")
    try:
        setattr(holder, path[-1], value)
    except TypeError as error:
        raise ConfigError(f"'{attr}': {error}.") from None


def _names(obj: Any) -> list[str]:
    if isinstance(obj, nn.Module):
        return [name for name, _ in (*obj.named_children(), *obj.named_parameters(recurse=False))]
    return list(vars(obj))
