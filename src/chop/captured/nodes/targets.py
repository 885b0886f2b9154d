"""Node targets: a normal form per torch call, side effects of calls, functions by name."""

from __future__ import annotations

import builtins
import functools
import importlib
import operator
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, fx

from chop.captured.runtime import (
    AutogradCall,
    enter_autocast,
    guard_autocast,
    guard_value,
    leave_autocast,
    retain_grad,
    set_item,
    swap_grad_mode,
)
from chop.private.torch_api import ASSERT, OVERLOADS, SET_GRAD_ENABLED, get_schemas, single_overload

_OPERATOR_NAMES = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("and_", "or_", "xor", "lshift", "rshift", "lt", "le", "gt", "ge", "eq", "ne"),
    *("neg", "pos", "invert", "abs", "getitem"),
)
_IN_PLACE_NAMES = (
    *("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor"),
)

PYTHON_OPERATORS: Mapping[str, Callable[..., Any]] = {
    **{name.rstrip("_"): getattr(operator, name) for name in (*_OPERATOR_NAMES, *_IN_PLACE_NAMES)},
    "div": operator.truediv,
    "idiv": operator.itruediv,
}

# `x + y`, `x.add(y)` and `torch.Tensor.add(x, y)` all reach the recorder as one method.
_METHODS_THAT_ARE_OPERATORS = frozenset(
    {"add", "sub", "mul", "div", "pow", "matmul", "lt", "le", "gt", "ge", "eq", "ne", "neg"}
)

_PYTHON_WRITTEN_DUNDERS = {
    id(function): name
    for name, function in vars(Tensor).items()
    if name.startswith("__") and isinstance(function, types.FunctionType)
}

_EFFECTS = frozenset(
    {
        SET_GRAD_ENABLED,
        ASSERT,
        guard_value,
        guard_autocast,
        enter_autocast,
        leave_autocast,
        retain_grad,
        swap_grad_mode,
    }
)

_IN_PLACE_OPERATORS = frozenset(getattr(operator, name) for name in _IN_PLACE_NAMES)

# Unused random draws stay: removing one would change every later draw.
_RANDOM_NAMES = frozenset(
    {
        *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like"),
        *("bernoulli", "multinomial", "normal", "poisson", "gumbel_softmax", "rrelu"),
        *("dropout", "alpha_dropout", "feature_alpha_dropout"),
    }
)


class NormalizedCall(NamedTuple):
    """Arguments of `fx.Graph.create_node`, before values are converted to nodes."""

    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def _is_method(function: Callable[..., Any], name: str, args: tuple[Any, ...]) -> bool:
    if not args or not isinstance(args[0], Tensor):
        return False
    if isinstance(function, types.MethodDescriptorType | types.WrapperDescriptorType):
        return True
    return function is getattr(Tensor, name, None)


def normalize_call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> NormalizedCall:
    """Returns the normal form of all Python spellings of the same operator."""
    function = single_overload(function)
    name = _PYTHON_WRITTEN_DUNDERS.get(id(function), getattr(function, "__name__", ""))
    if name.startswith("__") and name.endswith("__"):
        return _normalize_dunder(name, args, kwargs)
    if not _is_method(function, name, args):
        return NormalizedCall("call_function", function, args, kwargs)
    if name in _METHODS_THAT_ARE_OPERATORS and not kwargs:
        return NormalizedCall("call_function", PYTHON_OPERATORS[name], args, {})
    return NormalizedCall("call_method", name, args, kwargs)


def _normalize_dunder(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> NormalizedCall:
    base = name[2:-2]
    if base == "iter":
        return NormalizedCall("call_function", torch.unbind, args, {})
    if base == "setitem":
        return NormalizedCall("call_function", set_item, args, {})
    if base in PYTHON_OPERATORS:
        return NormalizedCall("call_function", PYTHON_OPERATORS[base], args, kwargs)
    if base.startswith("r") and base[1:] in PYTHON_OPERATORS:
        return NormalizedCall("call_function", PYTHON_OPERATORS[base[1:]], args[1::-1], kwargs)
    return NormalizedCall("call_method", name, args, kwargs)


def mutates_input(function: Callable[..., Any]) -> bool:
    """Returns whether torch's naming marks a call as in-place (`relu_`, `__iadd__`, `x[i] = v`)."""
    if isinstance(function, OVERLOADS):
        return any(schema.is_mutable for schema in get_schemas(function))
    name = getattr(function, "__name__", "")
    if name in ("__setitem__", "set_item") or function in _IN_PLACE_OPERATORS:
        return True
    if name[2:-2] in (*_IN_PLACE_NAMES, "idiv"):
        return True
    if getattr(function, "__module__", "") == operator.add.__module__:
        return False  # `and_`, `or_` and `not_` are Python operators
    return name.endswith("_") and not name.endswith("__")


def is_impure(node: fx.Node) -> bool:
    """Returns whether a node has side effects, so that it stays even if unused."""
    if node.op in ("placeholder", "output", "call_module"):
        return node.op != "call_module"
    if "out" in node.kwargs or node.kwargs.get("inplace") is True:
        return True
    if node.op == "call_method":
        name = str(node.target)
        return name in _RANDOM_NAMES or (name.endswith("_") and not name.endswith("__"))
    if node.op != "call_function":
        return False
    name = getattr(node.target, "__name__", "")
    return (
        node.target in _EFFECTS
        or name in _RANDOM_NAMES
        or mutates_input(cast(Callable[..., Any], node.target))
    )


# --- functions by name, for files ------------------------------------------------------------

_PUBLIC_HOMES = (
    "torch",
    "torch.nn.functional",
    "torch.linalg",
    "torch.fft",
    "torch.special",
    "torch._C._nn",
    "torch._C",
    "operator",
    "builtins",
    "math",
)


@functools.cache
def _names_by_identity() -> dict[int, str]:
    names: dict[int, str] = {}
    for home in _PUBLIC_HOMES:
        for name, value in vars(importlib.import_module(home)).items():
            if callable(value):
                names.setdefault(id(value), f"{home}:{name}")
    return names


def function_reference(function: Callable[..., Any]) -> str:
    """Returns the importable name `"module:qualname"` of a graph's function.

    Raises:
        ValueError: the function is local to another one and cannot be imported.

    >>> import torch.nn.functional as F
    >>> function_reference(torch.add), function_reference(F.max_pool2d)
    ('torch:add', 'torch.nn.functional:max_pool2d')
    """
    if isinstance(function, AutogradCall):
        return f"{_own_reference(function.function)}.apply"
    if isinstance(function, OVERLOADS):
        return f"torch.ops:{function}"
    public = _names_by_identity().get(id(function))
    return public if public is not None else _own_reference(function)


def _own_reference(function: Any) -> str:
    if isinstance(function, types.MethodDescriptorType):
        return f"torch:Tensor.{function.__name__}"
    reference = f"{function.__module__}:{function.__qualname__}"
    try:
        imported = resolve_reference(reference)
    except (ImportError, AttributeError):
        imported = None
    if imported is not function:
        raise ValueError(
            f"expected an importable function, got {reference}; "
            "define it at the top level of a module"
        )
    return reference


def resolve_reference(reference: str) -> Any:
    """Returns the function named by `function_reference`.

    >>> resolve_reference("operator:add")(1, 2)
    3
    """
    module, _, qualname = reference.partition(":")
    if module == "torch.ops":
        return operator.attrgetter(qualname)(torch.ops)
    home = builtins if module == "builtins" else importlib.import_module(module)
    *path, last = qualname.split(".")
    owner = operator.attrgetter(".".join(path))(home) if path else home
    if last == "apply" and isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
        return AutogradCall(owner)
    return getattr(owner, last)
