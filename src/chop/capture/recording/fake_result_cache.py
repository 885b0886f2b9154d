"""Cache of fake results: a repeated call returns new tensors of the cached shapes.

Layers repeat, and torch's arithmetic on symbolic shapes takes most of the time of a recording. The
cache key has the function, the arguments and the modes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from chop.capture.sizes.symbols import get_meta, new_fake
from chop.captured.leaves import is_torch_leaf, tensors_in
from chop.captured.nodes.targets import mutates_input
from chop.captured.overrides import why_not_its_class
from chop.private.modules import MEMBERS, has_forward_hooks
from chop.private.symbolic_shapes import FakeTensor
from chop.private.torch_api import DisableTorchFunction, storage_id

_PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None), type(Ellipsis)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum),
)


class _NotComparableError(Exception):
    """Raised for an argument that may have another meaning in the next call."""


class _Template:
    """Factory of tensors like one result, as it was when the call returned it.

    The model may write into the original, which gives it a history or another shape.
    """

    def __init__(self, first: FakeTensor) -> None:
        self.requires_grad = first.requires_grad
        self._first, self._shape, self._stride = first, first.shape, first.stride()
        self._elements: Tensor | None = None

    def instantiate(self) -> FakeTensor:
        """Returns a tensor like the original, without history."""
        if self._elements is None:
            self._elements = get_meta(self._first, self._shape, self._stride)
        return new_fake(self._first, self._elements)


class _Computed(torch.autograd.Function):
    """Gives new tensors the autograd history of a result, so that they may be changed in place."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, make: Callable[[], Any]) -> Any:
        return make()


class FakeCache:
    """Fake results of one recording by cache key."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, tuple[tuple[_Template, ...], bool]] = {}

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any, run: Any) -> Any:
        """Returns the result of `run()`, which calls a torch function on fake tensors."""
        if mutates_input(function):
            return run()
        return self._cached(function, (args, kwargs), (), run)

    def call_module(self, module: nn.Module, args: Any, kwargs: Any, run: Any) -> Any:
        """Returns the result of `run()`, which calls a torch layer on fake tensors."""
        if not is_torch_leaf(module) or why_not_its_class(module) is not None:
            return run()
        return self._cached(module, (args, kwargs), module.parameters(), run)

    def _cached(
        self, subject: Any, arguments: Any, parameters: Iterable[Tensor], run: Callable[[], Any]
    ) -> Any:
        try:
            with DisableTorchFunction():
                known = self._entries.get(_key((subject, arguments)))
        except _NotComparableError:
            return run()
        if known is None:
            result = run()
            with DisableTorchFunction():
                self._keep(subject, arguments, result)
            return result
        with DisableTorchFunction():
            return _replay(*known, [*tensors_in(arguments), *parameters])

    def _keep(self, subject: Any, arguments: Any, result: Any) -> None:
        templates = _templates(result, arguments)
        if templates:
            # The key is computed after the run, which may have made two sizes equal.
            self._entries[_key((subject, arguments))] = (templates, isinstance(result, tuple))


def _replay(templates: tuple[_Template, ...], several: bool, sources: list[Tensor]) -> Any:
    def make() -> Any:
        made = tuple(template.instantiate() for template in templates)
        return made if several else made[0]

    if not any(template.requires_grad for template in templates):
        return make()
    # Any differentiable source gives the result a history; autograd never runs it.
    source = next(tensor for tensor in sources if tensor.requires_grad)
    return _Computed.apply(source, make)  # type: ignore[no-untyped-call]


def _templates(result: Any, arguments: Any) -> tuple[_Template, ...]:
    """Returns templates of a result; empty if its shapes do not determine it."""
    tensors = result if type(result) is tuple else (result,)
    given = tensors_in(arguments)
    if given and not any(isinstance(tensor, FakeTensor) for tensor in given):
        return ()
    for tensor in tensors:
        plain = isinstance(tensor, FakeTensor) and tensor.constant is None and not tensor.is_nested
        if not plain or any(tensor is other for other in given) or not _has_backed_sizes(tensor):
            return ()
        # Writes into a view may give its base a gradient, unless it has one.
        if not tensor.requires_grad and _is_view_of(tensor, given):
            return ()
    wanted = {tensor.requires_grad for tensor in tensors if tensor.is_floating_point()}
    return tuple(map(_Template, tensors)) if len(wanted) <= 1 else ()


def _is_view_of(tensor: Tensor, given: list[Tensor]) -> bool:
    return storage_id(tensor) in map(storage_id, given)


def _has_backed_sizes(tensor: Tensor) -> bool:
    """Returns whether the shape depends on input sizes only, and not on data."""
    sizes = (*tensor.shape, *tensor.stride())
    return all(not isinstance(size, torch.SymInt) or size.node.has_hint() for size in sizes)


def _key(call: Any) -> Hashable:
    """Returns a key that is equal for calls that differ only in data."""
    # Under autocast, dtypes depend on casts that the arguments do not show.
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise _NotComparableError
    modes = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype())
    return modes, _value_key(call)


def _value_key(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return _tensor_key(value)
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return (type(value), value.node.expr)
    if isinstance(value, _PLAIN):
        return (type(value), value)
    if isinstance(value, tuple | list):
        return (type(value), *map(_value_key, value))
    if isinstance(value, slice):
        return (slice, _value_key(value.start), _value_key(value.stop), _value_key(value.step))
    if isinstance(value, Mapping):
        return (type(value), *((name, _value_key(item)) for name, item in value.items()))
    if isinstance(value, nn.Module):
        return _module_key(value)
    if callable(value):
        function: Hashable = value
        return function
    raise _NotComparableError


def _tensor_key(tensor: Tensor) -> Hashable:
    if tensor.layout is not torch.strided or getattr(tensor, "constant", None) is not None:
        raise _NotComparableError
    sizes = (*tensor.shape, *tensor.stride())
    return (
        type(tensor),
        tuple(size.node.expr if isinstance(size, torch.SymInt) else size for size in sizes),
        *(tensor.dtype, tensor.device, tensor.requires_grad, tensor.is_conj(), tensor.is_neg()),
    )


def _module_key(module: nn.Module) -> Hashable:
    if has_forward_hooks(module):
        raise _NotComparableError
    parts = [(name, _value_key(vars(module)[name])) for name in MEMBERS]
    options = [
        (name, _value_key(value))
        for name, value in vars(module).items()
        if not name.startswith("_")
    ]
    return (type(module), *parts, *options)
