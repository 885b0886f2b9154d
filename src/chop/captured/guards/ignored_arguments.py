"""Ignored arguments: arguments of the model that a captured graph may drop."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from chop.captured.state.values import same_content

_PLAIN = (bool, int, float, str, type(None))


# Arguments whose default models of transformers read from their configuration.
_FLAGS = ("return_dict", "output_attentions", "output_hidden_states", "use_cache")


def plain_defaults(model: nn.Module, names: Iterable[str]) -> dict[str, Any]:
    """Returns the plain default values of arguments of a model's `forward`.

    A default comes from the signature, or from the setting of that name in the configuration.
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
    """Returns whether `forward` has a `**kwargs`."""
    kinds = [p.kind for p in inspect.signature(model.forward).parameters.values()]
    return inspect.Parameter.VAR_KEYWORD in kinds


def why_not_ignorable(
    name: str, value: Any, defaults: Mapping[str, Any], captured: Sequence[str]
) -> str | None:
    """Explains why a graph without an argument must not be called with it; None if it may be.

    Ignorable values are None, the default, and `token_type_ids` of zeros, which tokenizers add for
    models with a single type. While torch compiles a call, tensors have no values, and
    `token_type_ids` are assumed to be zeros.

    Args:
        name: name of the argument.
        value: its value in the call.
        defaults: default values of the arguments of `forward`, see `plain_defaults`.
        captured: arguments that the graph takes.
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
        if isinstance(value, list) and name.endswith(("_ids", "_mask")):
            return (
                f"expected {name} as a tensor, got a list; pass tensors, which tokenizers return "
                "with return_tensors='pt'"
            )
    names = ", ".join(f"'{each}'" for each in (*captured, name))
    way_out = (
        f"capture it with hf_input_names=[{names}]"
        if isinstance(value, Tensor)
        else f"fix it at capture with cf_args={{'{name}': {value!r}}}"
    )
    return (
        f"the graph was captured without {name}, got {name}={came}: the model would use it, but "
        f"the graph has no such input; {way_out} in MaseGraph, or omit it"
    )
