"""Which arguments a captured graph may drop: those that carry nothing."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = (bool, int, float, str, type(None))


def plain_defaults(model: nn.Module, names: Iterable[str]) -> dict[str, Any]:
    """The defaults that the signature of a model's `forward` gives, where they are plain values."""
    parameters = inspect.signature(model.forward).parameters
    defaults = {name: parameters[name].default for name in names}
    return {name: value for name, value in defaults.items() if isinstance(value, _PLAIN)}


def refusal_to_drop(
    name: str, value: Any, defaults: Mapping[str, Any], captured: Sequence[str]
) -> str | None:
    """Why a graph that does not take an argument must not be called with it; None if it may be.

    None, the default of the signature and `token_type_ids` of zeros, which tokenizers add for
    models that have one type only, change nothing. While torch compiles a call the values of
    tensors are not known, and `token_type_ids` are taken to be zeros.

    Args:
        name: the argument.
        value: what came.
        defaults: plain defaults of the model's `forward`.
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
        if name in defaults and type(value) is type(defaults[name]) and value == defaults[name]:
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
