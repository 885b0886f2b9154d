"""Computed weights: a hook or a parametrization makes a layer's weight of other parameters.

torch has three generations of them: hooks (`torch.nn.utils.weight_norm`, `spectral_norm` and
`prune`), and parametrizations. An operator with formats has the weight that they compute as a plain
parameter; a mask of `torch.nn.utils.prune` becomes the operator's own, and pruning again keeps it.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from chop.base.notices import warn_once
from chop.nn.quantized.masks import FULL, MASK
from chop.private.modules import (
    FORWARD_HOOKS,
    MEMBERS,
    STATE_DICT_HOOKS,
    forward_pre_hooks,
    own_buffers,
    own_children,
    own_parameters,
    pruned_name,
    set_members,
)

_HOOKS = {WeightNorm: "weight_norm", SpectralNorm: "spectral_norm", BasePruningMethod: "prune"}
PRUNE = "torch.nn.utils.prune"
"""Answer of `why_computed` for a parameter that torch masks."""
_PARTS = ("_orig", "_mask", "_g", "_v", "_u")
PARAMETRIZATIONS = "parametrizations"
"""The child in which torch keeps what a parametrized module computes its parameters of."""


def why_computed(module: nn.Module | None) -> str | None:
    """What computes parameters of a module, as its function is called; None if nothing does."""
    if module is None:
        return None
    if is_parametrized(module):
        return "a parametrization"
    names = [f"torch.nn.utils.{_HOOKS[kind]}" for kind, _ in _hooks(module).values()]
    return names[0] if names else None


def _hooks(module: nn.Module) -> dict[int, tuple[type, Any]]:
    """The kind and the hook of those that compute parameters, by their keys."""
    return {
        key: (kind, hook)
        for key, hook in forward_pre_hooks(module).items()
        for kind in _HOOKS
        if isinstance(hook, kind)
    }


def masked_parameter(module: nn.Module, name: str) -> tuple[str, Tensor | None]:
    """The name of a parameter to those who compute with it, and what a mask hides of it.

    Args:
        module: pruned by chop or by `torch.nn.utils.prune`, or not at all.
        name: name of the parameter. torch calls a masked one NAME_orig.
    Returns: the name, and a boolean mask, True where it hides; None without a mask.
    """
    own = name.removesuffix("_orig")
    mask, parameter = own_buffers(module).get(f"{own}_mask"), own_parameters(module).get(name)
    if mask is None or (parameter is not None and mask.shape != parameter.shape):
        return name, None
    return own, mask == 0


@torch.no_grad()
def with_plain_weights(module: nn.Module) -> nn.Module:
    """The module with what it computes as parameters; itself where it computes none.

    The module is left as it was, and all else is shared with it.
    """
    if why_computed(module) is None:
        return module
    cls: Any = type(module).__mro__[1] if is_parametrized(module) else type(module)
    twin: nn.Module = cls.__new__(cls)
    twin.__dict__.update(module.__dict__)
    for members in (*MEMBERS, FORWARD_HOOKS[0]):
        twin.__dict__[members] = type(module.__dict__[members])(module.__dict__[members])
    if is_parametrized(module):
        del own_children(twin)[PARAMETRIZATIONS]
        with _evaluating(module.parametrizations):  # type: ignore[arg-type]
            found = {name: getattr(module, name) for name in module.parametrizations}  # type: ignore[union-attr]
        for name, value in found.items():
            _put(twin, name, value, any(x.requires_grad for x in _sources(module, name)))
    for key, (kind, hook) in _hooks(module).items():
        del forward_pre_hooks(twin)[key]
        _bake(module, twin, kind, hook)
    return twin


def _sources(module: Any, name: str) -> Iterator[nn.Parameter]:
    return module.parametrizations[name].parameters()  # type: ignore[no-any-return]


def _bake(module: nn.Module, twin: nn.Module, kind: type, hook: Any) -> None:
    """Gives `twin` the parameter that a hook computes, and takes away what it is computed of."""
    name = pruned_name(hook) if kind is BasePruningMethod else hook.name
    if kind is BasePruningMethod:
        value = hook.apply_mask(module)
    elif kind is SpectralNorm:
        value = hook.compute_weight(module, do_power_iteration=False)
    else:
        value = hook.compute_weight(module)
    parts: dict[str, Any] = {part: getattr(module, f"{name}{part}", None) for part in _PARTS}
    learns = any(isinstance(x, nn.Parameter) and x.requires_grad for x in parts.values())
    for part in _PARTS:
        own_parameters(twin).pop(f"{name}{part}", None)
        own_buffers(twin).pop(f"{name}{part}", None)
    twin.__dict__.pop(name, None)
    _put(twin, name, value, learns)
    if kind is BasePruningMethod and name == "weight":
        twin.register_buffer(MASK, parts["_mask"].bool())
        # Masks of torch add up: what one has pruned is pruned for those that follow.
        twin.register_buffer(FULL, value.detach().clone())
    elif kind is BasePruningMethod:
        warn_once(
            f"{type(module).__name__}: torch.nn.utils.prune masks its {name}, and quantized "
            "operators only have masks of weights: the zeros stay as values, which training may "
            "change."
        )
    if kind is SpectralNorm:
        for hooks in STATE_DICT_HOOKS:
            kept = {k: x for k, x in module.__dict__[hooks].items() if not _is_spectral(x)}
            twin.__dict__[hooks] = type(module.__dict__[hooks])(kept)


def _is_spectral(hook: Any) -> bool:
    inner = getattr(hook, "hook", hook)
    return type(inner).__module__ == SpectralNorm.__module__


def _put(twin: nn.Module, name: str, value: Tensor, learns: bool) -> None:
    """Sets a parameter ahead of the others, where a layer has its weight."""
    held = {key: x for key, x in own_parameters(twin).items() if key != name}
    parameter = nn.Parameter(value.detach().clone(), requires_grad=learns)
    first = {name: parameter} if name == "weight" else {}
    last = {} if first else {name: parameter}
    set_members(twin, type(own_parameters(twin))({**first, **held, **last}))


@contextlib.contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Without the step that a spectral norm takes in training mode."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def warn_about_plain_weights(where: str, computed: Mapping[str, str | None]) -> None:
    """Warns of layers that an operator with formats replaces, and whose weights become plain.

    Args:
        where: the pass.
        computed: what computes the weight of each layer, from `why_computed`, by path.
    """
    named = [f"'{path}' ({reason})" for path, reason in computed.items() if reason]
    lost = [text for text in named if not text.endswith(f"({PRUNE})")]
    if lost:
        warnings.warn(
            f"{where}: the weights of {', '.join(lost)} are computed; they became plain parameters "
            "with the values of now, which training does not constrain any more.",
            stacklevel=4,
        )
