"""Ignored arguments: what a captured graph may drop because it carries nothing."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from chop.captured.state.values import same_content

_PLAIN = (bool, int, float, str, type(None))


# What models of transformers take from their configuration where the argument is left out.
_FLAGS = ("return_dict", "output_attentions", "output_hidden_states", "use_cache")


def plain_defaults(model: nn.Module, names: Iterable[str]) -> dict[str, Any]:
    """What arguments of a model's `forward` are where they are left out, if plain values.

    That is the default of the signature, or the flag of that name in the configuration.
    """
    parameters = inspect.signature(model.forward).parameters
    given = {name: parameters[name].default for name in names}
    defaults = {name: value for name, value in given.items() if isinstance(value, _PLAIN)}
    config = getattr(model, "config", None)
    for name in _FLAGS:
        flag = getattr(config, name, None)
        if isinstance(flag, bool) and defaults.get(name) is None:
            defaults[name] = flag
    return defaults


def takes_any_keyword(model: nn.Module) -> bool:
    """Whether `forward` has a `**kwargs`."""
    kinds = [p.kind for p in inspect.signature(model.forward).parameters.values()]
    return inspect.Parameter.VAR_KEYWORD in kinds


def why_not_ignorable(
    name: str, value: Any, defaults: Mapping[str, Any], captured: Sequence[str]
) -> str | None:
    """Why a graph that does not take an argument must not be called with it; None if it may be.

    None, what the argument is where it is left out, and `token_type_ids` of zeros, which tokenizers
    add for models that have one type only, change nothing. While torch compiles a call the values
    of tensors are not known, and `token_type_ids` are taken to be zeros.

    Args:
        name: the argument.
        value: what came.
        defaults: what the arguments of the model's `forward` are by default, see `plain_defaults`.
        captured: the arguments that the graph takes.
    """
    if value is None:
        return None
    if isinstance(value, Tensor):
        zeros = torch.compiler.is_compiling() or not bool(value.any())
        if name == "token_type_ids" and zeros:
            return None
        came = f"a tensor of shape {tuple(value.shape)}"
    else:
        if name in defaults and same_content(value, defaults[name]):
            return None
        came = repr(value)
    names = ", ".join(f"'{each}'" for each in (*captured, name))
    way_out = (
        f"capture it with hf_input_names=[{names}]"
        if isinstance(value, Tensor)
        else f"fix it at capture with cf_args={{'{name}': {value!r}}}"
    )
    return (
        f"captured without {name}, got {name}={came}: the model would use it, and the graph does "
        f"not have it; {way_out} in MaseGraph, or leave it out"
    )
