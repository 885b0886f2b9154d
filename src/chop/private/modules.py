"""Private fields and methods of `torch.nn.Module` and of `torch.compile`'s wrapper.

Tested with torch 2.13; `tests/private/test_fences.py` fails first if a name is missing.

The public iterators omit members that are None or shared, and cannot replace the others. A subclass
of `nn.Module` reads its own fields directly, such as `self._buffers`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

PARAMETERS, BUFFERS, MODULES = "_parameters", "_buffers", "_modules"
MEMBERS = (PARAMETERS, BUFFERS, MODULES)
"""Attributes in which a module stores its members by name."""
NOT_PERSISTENT = "_non_persistent_buffers_set"
FORWARD_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
GRADIENT_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
HOOKS = (*FORWARD_HOOKS, *GRADIENT_HOOKS)
"""Attributes in which a module stores its hooks."""
HOOKS_BY_KIND = {
    "forward_pre": "_forward_pre_hooks",
    "forward": "_forward_hooks",
    "backward_pre": "_backward_pre_hooks",
    "backward": "_backward_hooks",
}
STATE_DICT_HOOKS = ("_state_dict_hooks", "_load_state_dict_pre_hooks")
COMPILED = "_compiled_call_impl"
"""Attribute set by `module.compile()`: compiled code that replaces the call."""
METHODS = ("forward", "_call_impl", "_conv_forward", "_output_padding", "_check_input_dim")
"""Methods in which modules compute."""


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Returns a module's own parameters by name, as the mutable dict that it uses."""
    return module._parameters


def own_buffers(module: nn.Module) -> dict[str, Tensor | None]:
    """Returns a module's own buffers by name, as the mutable dict that it uses."""
    return module._buffers


def own_children(module: nn.Module) -> dict[str, nn.Module | None]:
    """Returns a module's own submodules by name, as the mutable dict that it uses."""
    return module._modules


def not_persistent(module: nn.Module) -> set[str]:
    """Returns the names of own buffers that state dicts omit, as the set that the module uses."""
    return module._non_persistent_buffers_set


def own_members(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Returns a module's own parameters, buffers and submodules by name."""
    return module._parameters, module._buffers, module._modules


def set_members(
    module: nn.Module,
    parameters: Mapping[str, nn.Parameter | None] | None = None,
    buffers: Mapping[str, Tensor | None] | None = None,
    children: Mapping[str, nn.Module | None] | None = None,
    not_persistent: set[str] | None = None,
) -> None:
    """Replaces the dicts of a module's members; None keeps a dict."""
    new = zip(
        (*MEMBERS, NOT_PERSISTENT), (parameters, buffers, children, not_persistent), strict=True
    )
    vars(module).update({name: members for name, members in new if members is not None})


def class_label(module: nn.Module) -> str:
    """Returns the class name in the module's repr."""
    return str(module._get_name())


def has_forward_hooks(module: nn.Module) -> bool:
    """Returns whether a hook observes the inputs or outputs of a module."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def forward_pre_hooks(module: nn.Module) -> dict[int, Callable[..., Any]]:
    """Returns the forward pre-hooks of a module by key, as the dict that it uses."""
    return module._forward_pre_hooks


def share_gradient_hooks(source: nn.Module, target: nn.Module) -> None:
    """Copies the gradient hooks of one module to another."""
    target._is_full_backward_hook = source._is_full_backward_hook
    for hooks in GRADIENT_HOOKS:
        setattr(target, hooks, copy.copy(getattr(source, hooks)))


def copy_state_dict_hooks(module: nn.Module) -> None:
    """Gives a module its own state-dict hooks after it took over another module's `__dict__`."""
    for hooks in STATE_DICT_HOOKS:
        vars(module)[hooks] = vars(module)[hooks].copy()


def before_load_state_dict(module: nn.Module, hook: Callable[..., None]) -> None:
    """Calls `hook(state_dict, prefix, ...)`, without the module, before loading a state dict.

    The public method passes the original module, which is wrong for copies of it.
    """
    module._register_load_state_dict_pre_hook(hook)


def leave_attention_fast_path(attention: Any) -> None:
    """Makes layers around an `nn.MultiheadAttention` call it, not read its parameters."""
    attention._qkv_same_embed_dim = False


def wrapped_by_compile(wrapper: Any) -> nn.Module:
    """Returns the module wrapped by `torch.compile(module)`."""
    module: nn.Module = wrapper._orig_mod
    return module


def call_uncompiled(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    """Calls a module without the code compiled by `module.compile()`."""
    return module._call_impl(*args, **kwargs)


def padding_before(convolution: Any) -> list[int]:
    """Returns the input padding of a convolution in the order of `torch.nn.functional.pad`."""
    sizes: list[int] = convolution._reversed_padding_repeated_twice
    return sizes


def pruned_name(hook: Any) -> str:
    """Returns the name of the tensor that a `torch.nn.utils.prune` hook masks."""
    name: str = hook._tensor_name
    return name


def collect_flat_weights(recurrent: Any) -> None:
    """Makes a recurrent layer collect its kernel parameters."""
    recurrent._init_flat_weights()


def forget_flat_weights(recurrent: Any) -> None:
    """Makes a recurrent layer collect its weights again in the next call."""
    recurrent._flat_weights = []
    recurrent._flat_weight_refs = [_gone for _ in recurrent._flat_weights_names]


def _gone() -> None:
    """Imitates a weak reference to a dead tensor."""


def compute_parametrized(module: nn.Module, names: Iterable[str]) -> None:
    """Gives a module with `parametrizations` the properties that compute its tensors."""
    parametrize._inject_new_class(module)
    for name in names:
        parametrize._inject_property(module, name)
