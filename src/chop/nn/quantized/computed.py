"""Computed weights: weights that a hook or parametrization derives from other parameters.

torch has three generations of them: hooks (`torch.nn.utils.weight_norm`, `spectral_norm` and
`prune`), and parametrizations. An operator with formats stores the computed weight as a plain
parameter. A mask of `torch.nn.utils.prune` becomes the operator's own and survives further pruning.
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
"""Result of `why_computed` for a parameter that torch masks."""
_PARTS = ("_orig", "_mask", "_g", "_v", "_u")
PARAMETRIZATIONS = "parametrizations"
"""Child in which torch stores the original parameters of a parametrized module."""


def why_computed(module: nn.Module | None) -> str | None:
    """Returns the name of the function that computes a module's parameters; None without one."""
    if module is None:
        return None
    if is_parametrized(module):
        return "a parametrization"
    names = [f"torch.nn.utils.{_HOOKS[kind]}" for kind, _ in _hooks(module).values()]
    return names[0] if names else None


def _hooks(module: nn.Module) -> dict[int, tuple[type, Any]]:
    """Yields key, kind and hook of hooks that compute parameters."""
    return {
        key: (kind, hook)
        for key, hook in forward_pre_hooks(module).items()
        for kind in _HOOKS
        if isinstance(hook, kind)
    }


def masked_parameter(module: nn.Module, name: str) -> tuple[str, Tensor | None]:
    """Returns the trainable name of a parameter, and its mask.

    Args:
        module: pruned by chop or by `torch.nn.utils.prune`, or not at all.
        name: name of the parameter. torch calls a masked one NAME_orig.
    Returns: the name, and a boolean mask, True for hidden elements; None without a mask.
    """
    own = name.removesuffix("_orig")
    mask, parameter = own_buffers(module).get(f"{own}_mask"), own_parameters(module).get(name)
    if mask is None or (parameter is not None and mask.shape != parameter.shape):
        return name, None
    return own, mask == 0


@torch.no_grad()
def with_plain_weights(module: nn.Module) -> nn.Module:
    """Returns the module with computed weights as plain parameters; itself without any.

    The module is unchanged, and shares all other contents.
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
            values = {name: getattr(module, name) for name in module.parametrizations}  # type: ignore[union-attr]
        for name, value in values.items():
            _put(twin, name, value, any(x.requires_grad for x in _sources(module, name)))
    for key, (kind, hook) in _hooks(module).items():
        del forward_pre_hooks(twin)[key]
        _bake(module, twin, kind, hook)
    return twin


def _sources(module: Any, name: str) -> Iterator[nn.Parameter]:
    return module.parametrizations[name].parameters()  # type: ignore[no-any-return]


def _bake(module: nn.Module, twin: nn.Module, kind: type, hook: Any) -> None:
    """Gives `twin` the parameter that a hook computes, and removes its source parameters."""
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
            f"{type(module).__name__}: torch.nn.utils.prune masks its {name}, but quantized "
            "operators support masks of weights only: its zeros become values that training may "
            "change."
        )
    if kind is SpectralNorm:
        for hooks in STATE_DICT_HOOKS:
            remaining = {k: x for k, x in module.__dict__[hooks].items() if not _is_spectral(x)}
            twin.__dict__[hooks] = type(module.__dict__[hooks])(remaining)


def _is_spectral(hook: Any) -> bool:
    inner = getattr(hook, "hook", hook)
    return type(inner).__module__ == SpectralNorm.__module__


def _put(twin: nn.Module, name: str, value: Tensor, learns: bool) -> None:
    """Inserts a parameter before the others, at the usual place of a weight."""
    held = {key: x for key, x in own_parameters(twin).items() if key != name}
    parameter = nn.Parameter(value.detach().clone(), requires_grad=learns)
    first = {name: parameter} if name == "weight" else {}
    last = {} if first else {name: parameter}
    set_members(twin, type(own_parameters(twin))({**first, **held, **last}))


@contextlib.contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Disables the power iteration of a spectral norm in training mode inside the block."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def warn_about_plain_weights(where: str, computed: Mapping[str, str | None]) -> None:
    """Warns of layers whose computed weights become plain in a quantized operator.

    Args:
        where: the pass.
        computed: result of `why_computed` for each layer by path.
    """
    named = [f"'{path}' ({reason})" for path, reason in computed.items() if reason]
    lost = [text for text in named if not text.endswith(f"({PRUNE})")]
    if lost:
        warnings.warn(
            f"{where}: the computed weights of {', '.join(lost)} became plain parameters with "
            "their current values; training no longer constrains them.",
            stacklevel=4,
        )
