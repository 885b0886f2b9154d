"""State preservation: restores patches, model state and random state after a recording."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from chop.captured.state.python_state import PythonState
from chop.captured.state.tensor_state import TensorState


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

    def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        return call_module(module_call, module, args, kwargs)

    def apply(cls: type, /, *args: Any, **kwargs: Any) -> Any:
        return call_autograd_function(function_apply.__func__, cls, args, kwargs)

    def real_from_numpy(array: Any) -> torch.Tensor:
        # torch's symbolic shapes cost a quarter of a second to import.
        from chop.private.symbolic_shapes import outside_fake_mode

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


@dataclass
class Snapshot:
    """State of a model before a block of `preserve_state`."""

    attributes: PythonState
    tensors: TensorState


@contextlib.contextmanager
def preserve_state(
    model: nn.Module, thorough: bool = False, on_fakes: bool = False
) -> Iterator[Snapshot]:
    """Restores attributes, tensors, modes and random states that running a model may change.

    Args:
        model: the model.
        thorough: include parameters, and the contents of objects that modules hold. The contents of
            observers, for example, change on purpose.
        on_fakes: for a recording, which calls `keep` of the tensors itself, since watching each
            operator takes a fifth of its time.
    Yields: the state of the model before the block.
    """
    attributes = PythonState(model, deep=thorough)
    snapshot = Snapshot(attributes, TensorState(attributes.tensors.values()))
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    copies = (
        snapshot.tensors.copy_on_write() if thorough and not on_fakes else contextlib.nullcontext()
    )
    with torch.random.fork_rng():
        try:
            with copies:
                yield snapshot
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
            attributes.restore()
            snapshot.tensors.restore()
