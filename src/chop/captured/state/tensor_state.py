"""Tensor state: values and autograd history of a model's tensors, copied on write, restored."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from chop.private.torch_api import (
    TorchDispatchMode,
    get_schema,
    gradient_hooks,
    is_view,
    storage_id,
    write_count,
)


class TensorState:
    """Values and autograd history of tensors, to be restored.

    Parameters may take most of the memory; they are copied when `copy_on_write` detects that an
    operator is about to write into them.

    Args:
        tensors: tensors of a model. Those without data, on the meta device or uninitialized, are
            skipped.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        usable = [x for x in tensors if not (x.is_meta or is_lazy(x) or x.is_inference())]
        self._same_memory = [(x, x.detach()) for x in usable if x.layout is torch.strided]
        parameters = [x for x in usable if isinstance(x, nn.Parameter)]
        self._leaves = [(x, x.requires_grad) for x in usable if x.is_leaf]
        self._grads = [(x, x.grad) for x, _ in self._leaves]
        grads = [grad for _, grad in self._grads if grad is not None]
        self._hooks = [(x, set(gradient_hooks(x))) for x, _ in self._leaves]
        self._copies = _CopyOnWrite([*parameters, *grads])
        self._versions = {id(x): write_count(x) for x in usable}
        self._values = [(x, x.detach().clone()) for x in usable if not isinstance(x, nn.Parameter)]

    def copy_on_write(self) -> contextlib.AbstractContextManager[Any]:
        """Copies parameters before an operator inside the block writes into them."""
        return self._copies

    def separate_views(self) -> None:
        """Prevents autograd from recording writes through a view in its base, which is
        irreversible.

        A write with a gradient gives a view and its base a history, and only that of the base can
        be removed again. Memory and identity are preserved.
        """
        for tensor, _ in self._leaves:
            if is_view(tensor) and not tensor.requires_grad:
                # A view that is referenced elsewhere stays a view.
                with contextlib.suppress(RuntimeError):
                    torch.utils.swap_tensors(tensor, tensor.detach())

    def copy_before_write(self, written: Any) -> None:
        """Copies tensors that share memory with a tensor that is about to be written."""
        self._copies.copy_before_write(written)

    def changed(self) -> list[Tensor]:
        """Returns the tensors that were written into or got other memory."""
        moved = [tensor for tensor, memory in self._same_memory if _moved(tensor, memory)]
        return [*moved, *(tensor for tensor, _ in self._written())]

    def _written(self) -> list[tuple[Tensor, Tensor]]:
        values = [(x, value) for x, value in self._values if self._is_written(x, value)]
        return [*values, *self._copies.copies.values()]

    def _is_written(self, tensor: Tensor, value: Tensor) -> bool:
        # Batch norm kernels write without increasing the version counter, so the version alone is
        # not enough. Sparse tensors cannot be compared.
        if tensor.layout is not torch.strided or tensor.shape != value.shape:
            return write_count(tensor) != self._versions[id(tensor)]
        return not torch.equal(tensor, value)

    def restore(self) -> None:
        """Restores values and histories without changing autograd's version counters."""
        for tensor, requires_grad in self._leaves:
            _drop_history(tensor, requires_grad)
        for tensor, memory in self._same_memory:
            if _moved(tensor, memory):
                tensor.data = memory
        with torch.no_grad():
            for tensor, value in self._written():
                tensor.data.copy_(value)
        for leaf, grad in self._grads:
            if leaf.grad is not grad:
                leaf.grad = grad
        for leaf, before in self._hooks:
            hooks = gradient_hooks(leaf)
            for key in hooks.keys() - before:
                del hooks[key]


def _drop_history(leaf: Tensor, requires_grad: bool) -> None:
    """Makes a tensor a leaf again after an in-place operation."""
    if not leaf.is_leaf:
        if is_view(leaf):
            with contextlib.suppress(RuntimeError):
                torch.utils.swap_tensors(leaf, leaf.detach())
        else:
            leaf.detach_()
    if leaf.is_leaf and leaf.requires_grad != requires_grad:
        leaf.requires_grad_(requires_grad)


def _moved(tensor: Tensor, memory: Tensor) -> bool:
    # The address is not compared: a recorded model may have assigned a fake tensor.
    return storage_id(tensor) != storage_id(memory)


class _CopyOnWrite(TorchDispatchMode):
    """Mode that copies tensors before an operator writes into their memory through any view."""

    supports_higher_order_operators = True

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.copies: dict[int, tuple[Tensor, Tensor]] = {}
        self._owners: dict[int, list[Tensor]] = {}
        for tensor in tensors:
            if tensor.layout is torch.strided:
                memory = tensor.untyped_storage().data_ptr()
                self._owners.setdefault(memory, []).append(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for index, name in _written_arguments(func):
            written = args[index] if index < len(args) else kwargs.get(name)
            for tensor in written if isinstance(written, list | tuple) else [written]:
                self.copy_before_write(tensor)
        return func(*args, **kwargs)

    def copy_before_write(self, written: Any) -> None:
        if type(written) not in (Tensor, nn.Parameter) or written.layout is not torch.strided:
            return
        for tensor in self._owners.get(written.untyped_storage().data_ptr(), ()):
            if id(tensor) not in self.copies:
                # torch's symbolic shapes cost a quarter of a second to import.
                from chop.private.symbolic_shapes import outside_fake_mode

                # Fake mode runs an operator for real when none of its inputs is fake.
                with outside_fake_mode():
                    self.copies[id(tensor)] = (tensor, tensor.detach().clone())


@functools.cache
def _written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    """Returns position and name of the arguments that an operator writes into."""
    schema = get_schema(func)
    if schema is None or not schema.is_mutable:
        return ()
    return tuple(
        (index, argument.name)
        for index, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
