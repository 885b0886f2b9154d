"""Joined parameters: state dicts with parameters of several children as one tensor."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from chop.private.modules import before_load_state_dict, copy_state_dict_hooks

KEY = "joined_in_state_dicts"
"""Attribute of a module that holds its joined parameters."""

Joined = Mapping[str, tuple[str, ...]]
"""Parameters that form the rows of a tensor in state dicts, in order, by the tensor's name."""


def join_in_state_dicts(module: nn.Module, joined: Joined) -> None:
    """Makes the state dicts of a module store parameters of its children as one tensor.

    They are joined only if all of them exist: codes of packed layers stay separate.

    Args:
        module: it is changed.
        joined: see `Joined`; all parts have the same number of rows.
    """
    vars(module)[KEY] = dict(joined)
    # A module that takes over another's `__dict__` shares its hooks, which may not support it.
    copy_state_dict_hooks(module)
    module.register_state_dict_post_hook(_saved)
    before_load_state_dict(module, functools.partial(_loaded, dict(joined)))


def joined_names(module: nn.Module) -> Joined:
    """Returns the joined parameters of a module; empty for most."""
    joined: Joined = vars(module).get(KEY, {})
    return joined


def _saved(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    joined = joined_names(module)
    if not all(prefix + part in state for parts in joined.values() for part in parts):
        return
    # In the order of the joined module, whose own tensors come before those of its children.
    own = {name: state.pop(name) for name in list(state) if name.startswith(prefix)}
    for name, parts in joined.items():
        tensors = [own.pop(prefix + part) for part in parts]
        state[prefix + name] = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
    state.update(own)


def _loaded(joined: Joined, state: dict[str, Any], prefix: str, *args: Any) -> None:
    for name, parts in joined.items():
        if prefix + name in state:
            rows = state[prefix + name].chunk(len(parts))
            if len(rows) == len(parts):
                del state[prefix + name]
                state.update({prefix + part: x for part, x in zip(parts, rows, strict=True)})
