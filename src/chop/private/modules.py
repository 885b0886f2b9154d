"""Fence around the private fields and methods of `torch.nn.Module` and `torch.compile`'s wrapper.

Known for torch 2.13; `tests/private/test_fences.py` fails first where a name is gone.

The public iterators leave out members that are None, or shared, and cannot replace the rest.
A subclass of `nn.Module` reads its own fields as `self._buffers`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

PARAMETERS, BUFFERS, MODULES = "_parameters", "_buffers", "_modules"
MEMBERS = (PARAMETERS, BUFFERS, MODULES)
"""The attributes in which a module keeps its members by name."""
NOT_PERSISTENT = "_non_persistent_buffers_set"
FORWARD_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
GRADIENT_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
HOOKS = (*FORWARD_HOOKS, *GRADIENT_HOOKS)
"""The attributes in which a module keeps its hooks."""
HOOKS_BY_KIND = {
    "forward_pre": "_forward_pre_hooks",
    "forward": "_forward_hooks",
    "backward_pre": "_backward_pre_hooks",
    "backward": "_backward_hooks",
}
STATE_DICT_HOOKS = ("_state_dict_hooks", "_load_state_dict_pre_hooks")
COMPILED = "_compiled_call_impl"
"""The attribute that `module.compile()` sets: code that is called instead of the module."""
METHODS = ("forward", "_call_impl", "_conv_forward", "_output_padding", "_check_input_dim")
"""The methods that a module computes with."""


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Own parameters of a module by name; the dict that it reads, which may be changed."""
    return module._parameters


def own_buffers(module: nn.Module) -> dict[str, Tensor | None]:
    """Own buffers of a module by name; the dict that it reads, which may be changed."""
    return module._buffers


def own_children(module: nn.Module) -> dict[str, nn.Module | None]:
    """Own submodules of a module by name; the dict that it reads, which may be changed."""
    return module._modules


def not_persistent(module: nn.Module) -> set[str]:
    """Names of own buffers that state dicts leave out; the set that the module reads."""
    return module._non_persistent_buffers_set


def own_members(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Own parameters, buffers and submodules of a module by name."""
    return module._parameters, module._buffers, module._modules


def set_members(
    module: nn.Module,
    parameters: Mapping[str, nn.Parameter | None] | None = None,
    buffers: Mapping[str, Tensor | None] | None = None,
    children: Mapping[str, nn.Module | None] | None = None,
    not_persistent: set[str] | None = None,
) -> None:
    """Replaces the dicts of a module's members; None leaves one as it is."""
    new = zip(
        (*MEMBERS, NOT_PERSISTENT), (parameters, buffers, children, not_persistent), strict=True
    )
    vars(module).update({name: members for name, members in new if members is not None})


def class_label(module: nn.Module) -> str:
    """The name of its class by which a module prints itself."""
    return str(module._get_name())


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether a hook sees what a module takes or gives."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def forward_pre_hooks(module: nn.Module) -> dict[int, Callable[..., Any]]:
    """Hooks that see a module's arguments, by key; the dict that it reads."""
    return module._forward_pre_hooks


def share_gradient_hooks(source: nn.Module, target: nn.Module) -> None:
    """Gives a module the hooks on gradients that another one has."""
    target._is_full_backward_hook = source._is_full_backward_hook
    for hooks in GRADIENT_HOOKS:
        setattr(target, hooks, copy.copy(getattr(source, hooks)))


def copy_state_dict_hooks(module: nn.Module) -> None:
    """Makes hooks on state dicts a module's own, where it has taken over another's `__dict__`."""
    for hooks in STATE_DICT_HOOKS:
        vars(module)[hooks] = vars(module)[hooks].copy()


def before_load_state_dict(module: nn.Module, hook: Callable[..., None]) -> None:
    """Calls `hook(state_dict, prefix, ...)`, without the module, before state is loaded.

    The public method passes the module, which a copy of it would not be.
    """
    module._register_load_state_dict_pre_hook(hook)


def leave_attention_fast_path(attention: Any) -> None:
    """Makes layers around an `nn.MultiheadAttention` call it, and not read its parameters."""
    attention._qkv_same_embed_dim = False


def wrapped_by_compile(wrapper: Any) -> nn.Module:
    """The module that a `torch.compile(module)` calls."""
    module: nn.Module = wrapper._orig_mod
    return module


def call_uncompiled(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Calls a module without the code that `module.compile()` has made of it."""
    return module._call_impl(*args, **kwargs)


def padding_before(convolution: Any) -> list[int]:
    """Padding of a convolution's input in the order of `torch.nn.functional.pad`."""
    sizes: list[int] = convolution._reversed_padding_repeated_twice
    return sizes


def pruned_name(hook: Any) -> str:
    """The name of the tensor that a `torch.nn.utils.prune` hook masks."""
    name: str = hook._tensor_name
    return name


def collect_flat_weights(recurrent: Any) -> None:
    """Makes a recurrent layer gather the parameters that it calls its kernel with."""
    recurrent._init_flat_weights()


def forget_flat_weights(recurrent: Any) -> None:
    """Makes a recurrent layer gather its weights at the next run, as where they have gone."""
    recurrent._flat_weights = []
    recurrent._flat_weight_refs = [_gone for _ in recurrent._flat_weights_names]


def _gone() -> None:
    """Looks like a weak reference to a tensor that is no more."""


def compute_parametrized(module: nn.Module, names: Iterable[str]) -> None:
    """Gives a module that has its `parametrizations` the properties that compute tensors."""
    parametrize._inject_new_class(module)
    for name in names:
        parametrize._inject_property(module, name)
