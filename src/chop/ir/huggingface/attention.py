"""Quantized attention in Hugging Face models, through its registry of attention functions.

An attention module of transformers calls the function that its configuration names. `chop_sdpa` is
transformers' `sdpa` function with the products replaced by the quantized children of the module;
masks are made as for `sdpa`. `chop_eager` does the same for the eager function of the model's file.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from chop.captured.layers.attention import PRODUCTS, ProjectedAttention, attend
from chop.errors import GraphError
from chop.ir.ops import get_function_row
from chop.private.modules import own_children
from chop.private.transformers_api import attention_name, set_attention_name

PREFIX = "chop_"
CALLS = "quantized_calls"
"""Attribute of an attention module with its quantized calls; see `quantize_attention`."""
_CALLED: Mapping[str, tuple[Callable[..., Any], ...]] = {
    "sdpa": (F.scaled_dot_product_attention,),
    "eager": (torch.matmul, torch.softmax, torch.matmul),
}
"""Product functions that each attention implementation calls."""

_IN_TORCH = ("scaled_dot_product_attention", "matmul", "softmax", "mul")
"""Operators with formats that `chop.captured.layers.attention.attend` calls."""

Products = Mapping[str, Sequence[nn.Module | None]]
"""Operator -> quantized call, or None, for each call of the forward in order."""


def why_not_attention(cls: type[nn.Module] | None, operators: Sequence[str]) -> str | None:
    """Returns why a module's quantized products cannot use the registry; None if they can."""
    if cls is not None and issubclass(cls, ProjectedAttention):
        known: tuple[str, ...] = _IN_TORCH
    elif cls is None or not cls.__module__.startswith("transformers."):
        return "it is not an attention of transformers or torch"
    else:
        code = getattr(inspect.unwrap(cls.forward), "__code__", None)
        if code is None or "ALL_ATTENTION_FUNCTIONS" not in code.co_names:
            return "it does not use transformers' attention functions"
        known = tuple(name for base in _CALLED for name in _counts(base))
    unknown = [name for name in operators if name not in known]
    return f"'{unknown[0]}' is not a product of its attention" if unknown else None


def quantize_attention(model: nn.Module, path: str, products: Products) -> None:
    """Makes an attention module of transformers or torch compute with quantized products.

    Args:
        model: the model, changed in place.
        path: path of the attention module.
        products: its quantized calls.

    Raises:
        GraphError: if the configuration names another attention function, or the forward calls
            these operators outside of it.
    """
    module: Any = model.get_submodule(path)
    if isinstance(module, ProjectedAttention):
        own_children(module)[PRODUCTS] = _add_children(QuantizedProducts(), products)
        return
    base = attention_name(module.config).removeprefix(PREFIX)
    expected = _counts(base)
    if any(expected[name] != len(calls) for name, calls in products.items()):
        counts = ", ".join(f"{len(calls)} of '{name}'" for name, calls in products.items())
        raise GraphError(
            f"to_module: module '{path}' has {counts}, which attention '{base}' does not have; "
            "expected those of 'sdpa' or 'eager'."
        )
    _add_children(module, products)
    register()
    set_attention_name(module.config, PREFIX + base)


def _add_children(module: nn.Module, products: Products) -> nn.Module:
    """Adds quantized calls to a module as children; see `CALLS`."""
    names: dict[str, tuple[str | None, ...]] = {}
    for operator, calls in products.items():
        keys = [f"{operator}_{n}" if len(calls) > 1 else operator for n in range(len(calls))]
        own_children(module).update(
            {k: c for k, c in zip(keys, calls, strict=True) if c is not None}
        )
        names[operator] = tuple(
            None if call is None else key for key, call in zip(keys, calls, strict=True)
        )
    setattr(module, CALLS, names)
    return module


class QuantizedProducts(nn.Module):
    """Attention products of a `ProjectedAttention` with quantized calls as children."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Computes attention like `chop.captured.layers.attention.attend`."""
        return _quantized(self, lambda _, *given, **named: attend(*given, **named), args, kwargs)


def _counts(base: str) -> Counter[str]:
    """Returns the number of calls of each operator in an attention function."""
    return Counter(get_function_row(function).name for function in _CALLED.get(base, ()))


def register() -> None:
    """Registers the attention functions and their masks with transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask, sdpa_mask

    for base, mask in (("sdpa", sdpa_mask), ("eager", eager_mask)):
        AttentionInterface.register(PREFIX + base, _FUNCTIONS[base])
        AttentionMaskInterface.register(PREFIX + base, mask)


def _sdpa_attention(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Computes transformers' `sdpa` attention with the quantized products of `module`."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    return _quantized(module, sdpa_attention_forward, args, kwargs)


def _eager_attention(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Computes the eager attention of the file of `module` with its quantized products."""
    home = sys.modules[type(module).__module__]
    return _quantized(module, home.eager_attention_forward, args, kwargs)


_FUNCTIONS: dict[str, Callable[..., Any]] = {"sdpa": _sdpa_attention, "eager": _eager_attention}


def _quantized(
    module: nn.Module, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
) -> Any:
    names: Mapping[str, Sequence[str | None]] = vars(module).get(CALLS, {})
    if not names:  # an attention with float products, in a model with others
        return function(module, *args, **kwargs)
    calls = {
        operator: iter([None if key is None else own_children(module)[key] for key in keys])
        for operator, keys in names.items()
    }
    with _Redirected(calls):
        return function(module, *args, **kwargs)


class _Redirected(TorchFunctionMode):
    """Context that redirects calls of operators to modules, in order; None keeps a call."""

    def __init__(self, calls: Mapping[str, Iterator[nn.Module | None]]) -> None:
        super().__init__()
        self._calls = calls

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        operator = get_function_row(func).name
        module = next(self._calls[operator], None) if operator in self._calls else None
        return (func if module is None else module)(*args, **(kwargs or {}))
