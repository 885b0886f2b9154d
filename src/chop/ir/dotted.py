"""Attribute access by dotted path."""

from __future__ import annotations

import functools
from typing import Any

from chop.errors import ConfigError, did_you_mean


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


def deepsetattr(obj: Any, attr: str, value: Any) -> None:
    """Sets the attribute at a dotted path, for instance to replace a layer of a model.

    Args:
        obj: root of the path.
        attr: dotted path, such as `"bert.encoder.layer.0.output.dense"`.
        value: new value.
    Raises:
        ConfigError: if the path does not exist. The message suggests the nearest name.
    """
    *path, last = attr.split(".")
    for depth, name in enumerate(path):
        if not hasattr(obj, name):
            where = ".".join(path[:depth]) or type(obj).__name__
            raise ConfigError(f"'{where}' has no '{name}': {did_you_mean(name, _names(obj))}")
        obj = getattr(obj, name)
    setattr(obj, last, value)


def _names(obj: Any) -> list[str]:
    children = getattr(obj, "named_children", None)
    return [name for name, _ in children()] if children else list(vars(obj))
