"""Attributes by dotted path."""

from __future__ import annotations

import functools
from typing import Any

from chop.errors import ConfigError, did_you_mean


def deepgetattr(obj: Any, attr: str, default: Any = None) -> Any:
    """The attribute at a dotted path, or `default` where the path ends early.

    >>> import torch
    >>> deepgetattr(torch.nn.Sequential(torch.nn.Linear(2, 3)), "0.out_features")
    3
    """
    try:
        return functools.reduce(getattr, attr.split("."), obj)
    except AttributeError:
        return default


def deepsetattr(obj: Any, attr: str, value: Any) -> None:
    """Sets the attribute at a dotted path, for instance to swap a layer of a model.

    Args:
        obj: where the path starts.
        attr: `"bert.encoder.layer.0.output.dense"`.
        value: what to put there.
    Raises:
        ConfigError: the path ends before its last name; the message names the nearest.
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
