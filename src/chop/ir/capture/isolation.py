"""Leaves no trace of a recording: patches, model state and random state are put back."""

from __future__ import annotations

import contextlib
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

# Hooks are kept in ordered ones; transformers adds some in the first forward pass.
CONTAINERS = (dict, OrderedDict, list, set)


@contextlib.contextmanager
def patched_calls(
    call_module: Callable[..., Any], call_autograd_function: Callable[..., Any]
) -> Iterator[None]:
    """Routes module calls and `autograd.Function.apply` to a recorder.

    Each handler gets the original, the module or class, the arguments and the keyword arguments.
    """
    module_call = nn.Module.__call__
    function_apply = torch.autograd.Function.__dict__["apply"]
    from_numpy = torch.from_numpy

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return call_module(module_call, module, args, kwargs)

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        return call_autograd_function(function_apply.__func__, cls, args, kwargs)

    def real_from_numpy(array: Any) -> torch.Tensor:
        # torch's symbolic shapes cost a quarter of a second to import.
        from chop.ir.capture.symbols import outside_fake_mode

        # The storage of a numpy array is real; a fake tensor on it would lose the values.
        with outside_fake_mode():
            return from_numpy(array)

    nn.Module.__call__ = call  # type: ignore[method-assign]
    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]
    torch.from_numpy = real_from_numpy  # type: ignore[assignment]
    try:
        yield
    finally:
        nn.Module.__call__ = module_call  # type: ignore[method-assign]
        torch.autograd.Function.apply = function_apply  # type: ignore[method-assign]
        torch.from_numpy = from_numpy


@contextlib.contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Puts back what running a model may change: attributes, buffers, modes and random states."""
    attributes = [(module, _snapshot(module)) for module in model.modules()]
    buffers = [(x, x.detach().clone(), x._version) for x in model.buffers()]
    draws = random.getstate()
    numpy_draws = np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(draws)
            np.random.set_state(numpy_draws)
            for module, snapshot in attributes:
                _restore(module, snapshot)
            with torch.no_grad():
                for buffer, value, version in buffers:
                    # A meta buffer has no data to compare or to put back.
                    if not buffer.is_meta and not _is_same(buffer, value, version):
                        buffer.copy_(value)


def _is_same(buffer: torch.Tensor, value: torch.Tensor, version: int) -> bool:
    if buffer.layout is not torch.strided:
        # torch compares dense tensors only.
        return buffer._version == version
    return torch.equal(buffer, value)


def _snapshot(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    """Per attribute the object and, for containers that may be filled in place, a copy."""
    return {
        name: (value, value.copy() if type(value) in CONTAINERS else None)
        for name, value in module.__dict__.items()
    }


def _restore(module: nn.Module, snapshot: dict[str, tuple[Any, Any]]) -> None:
    for name in module.__dict__.keys() - snapshot.keys():
        del module.__dict__[name]
    for name, (value, content) in snapshot.items():
        module.__dict__[name] = value
        if content is None:
            continue
        if isinstance(value, list):
            value[:] = content
        else:
            value.clear()
            value.update(content)
