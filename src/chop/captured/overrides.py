"""Overrides on modules: hooks, and methods replaced on the instance."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from chop.private.modules import (
    COMPILED,
    FORWARD_HOOKS,
    HOOKS,
    METHODS,
    call_uncompiled,
    wrapped_by_compile,
)
from chop.private.torch_api import global_forward_hooks


def has_hooks(module: nn.Module) -> bool:
    """Returns whether a module has hooks on its calls or gradients."""
    # Every call of a graph checks its scopes, and a generator would take three times as long.
    return any(map(vars(module).__getitem__, HOOKS))


def forward_hooks(module: nn.Module) -> list[str]:
    """Returns the names of hooks that see, and may change, the module's inputs and outputs.

    This includes hooks on all modules (`register_module_forward_hook`).
    """
    own = [hook for hooks in FORWARD_HOOKS for hook in vars(module)[hooks].values()]
    return [_name(hook) for hook in (*own, *global_forward_hooks())]


def why_not_its_class(module: nn.Module) -> str | None:
    """Explains why a module differs from its class; None if it does not.

    >>> layer = nn.Linear(2, 2)
    >>> layer.forward = abs
    >>> why_not_its_class(layer)
    "its forward was replaced on the instance by 'abs'; define it in a subclass instead"
    """
    replaced = _describe_replaced(module)
    if not replaced or is_compiled_wrapper(module):
        return None
    if "accelerate" in replaced:
        return f"{replaced}; accelerate.hooks.remove_hook_from_module(model, recurse=True) ends it"
    return f"{replaced}; define it in a subclass instead"


def _describe_replaced(module: nn.Module) -> str:
    """Returns the first method replaced on the instance, with the replacement; "" if none."""
    own = vars(module)
    name = next((name for name in METHODS if name in own), None)
    if name is None:
        return ""
    # accelerate stores the original forward under these names.
    if "_hf_hook" in own and "_old_forward" in own:
        return f"its forward goes through accelerate's {type(own['_hf_hook']).__name__}"
    return f"its {name} was replaced on the instance by {_name(own[name])}"


def why_not_copyable(module: nn.Module) -> str | None:
    """Explains why a copy of a module would still call the original; None if it would not.

    Methods and partial functions of a module are rebound to its copy. Functions keep their
    closures.
    """
    if is_compiled_wrapper(module):
        return "it is a torch.compile wrapper and calls the original; compile the result instead"
    function = next((vars(module)[name] for name in METHODS if name in vars(module)), None)
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    means_modules = isinstance(function, types.FunctionType) and _refers_to_modules(function, set())
    return f"{_describe_replaced(module)}, which refers to the original" if means_modules else None


def _refers_to_modules(value: Any, seen: set[int]) -> bool:
    """Returns whether modules or tensors are reachable from values that copies share."""
    if id(value) in seen:
        return False
    seen.add(id(value))
    parts: Iterable[Any] = ()
    if isinstance(value, nn.Module | Tensor):
        return True
    if isinstance(value, types.MethodType):
        parts = (value.__self__, value.__func__)
    elif isinstance(value, functools.partial):
        parts = (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.FunctionType):
        # A copied function shares its closure, globals and defaults with the original.
        known = inspect.getclosurevars(value)
        parts = (*known.nonlocals.values(), *known.globals.values(), *(value.__defaults__ or ()))
    elif isinstance(value, list | tuple | set | dict):
        parts = value.values() if isinstance(value, dict) else value
    return any(_refers_to_modules(part, seen) for part in parts)


def is_compiled_wrapper(module: nn.Module) -> bool:
    """Returns whether a module is the result of `torch.compile(module)`."""
    cls = type(module)
    return (cls.__module__, cls.__name__) == ("torch._dynamo.eval_frame", "OptimizedModule")


def plain_call(module: nn.Module, call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a call of a module without the code compiled by `torch.compile`."""
    if is_compiled_wrapper(module):
        return lambda wrapper, *args, **kwargs: wrapped_by_compile(wrapper)(*args, **kwargs)
    if vars(module).get(COMPILED) is not None:
        return call_uncompiled
    return call


def _name(function: Any) -> str:
    """Returns a function's name and source location."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(getattr(function, "__func__", function))
    name = getattr(function, "__qualname__", type(function).__name__)
    code = getattr(function, "__code__", None)
    where = "" if code is None else f" at {code.co_filename}:{code.co_firstlineno}"
    return f"'{name}'{where}"
