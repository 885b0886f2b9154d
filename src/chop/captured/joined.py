"""Joined parameters: state dicts that hold parameters of several children as one tensor."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from chop.private.modules import before_load_state_dict, copy_state_dict_hooks

KEY = "joined_in_state_dicts"
"""Where a module keeps its joined parameters."""

Joined = Mapping[str, tuple[str, ...]]
"""By name of a tensor in state dicts, the parameters whose rows it has, in order."""


def join_in_state_dicts(module: nn.Module, joined: Joined) -> None:
    """Makes state dicts of a module have parameters of its children as one tensor.

    They are joined where all of them are there: codes of packed layers stay apart.

    Args:
        module: it is changed.
        joined: see `Joined`; all its parts have the same number of rows.
    """
    vars(module)[KEY] = dict(joined)
    # A module that takes over another's `__dict__` has its hooks: they may not know the module.
    copy_state_dict_hooks(module)
    module.register_state_dict_post_hook(_saved)
    before_load_state_dict(module, functools.partial(_loaded, dict(joined)))


def joined_names(module: nn.Module) -> Joined:
    """What a module's state dicts join; empty for most."""
    found: Joined = vars(module).get(KEY, {})
    return found


def _saved(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    joined = joined_names(module)
    if not all(prefix + part in state for parts in joined.values() for part in parts):
        return
    # In the order of the module that has them as one: its own tensors are before its children's.
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
