"""TorchScript functions: a recording runs their Python source instead."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from chop.errors import CaptureError
from chop.private.torch_api import python_of_script

_SCRIPT = torch.jit.ScriptFunction


@contextlib.contextmanager
def scripts_as_python() -> Iterator[None]:
    """Makes `torch.jit.script` functions run as the Python that they were compiled from.

    TorchScript reports none of its operators to a recording, and its profiler would keep the shapes
    of fake tensors for later calls with real ones.
    """
    compiled = _SCRIPT.__call__

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        source = python_of_script(function)
        if source is None:
            raise CaptureError(
                f"TorchScript has compiled {function.name}, so that there is no Python to record"
            )
        return source(*args, **kwargs)

    _SCRIPT.__call__ = call  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        _SCRIPT.__call__ = compiled  # type: ignore[method-assign]
