"""TorchScript functions in a recording, run from their Python source."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from chop.errors import CaptureError
from chop.private.torch_api import python_of_script

_SCRIPT = torch.jit.ScriptFunction


@contextlib.contextmanager
def run_scripts_as_python() -> Iterator[None]:
    """Makes `torch.jit.script` functions run the Python source that they were compiled from.

    TorchScript hides its operators from a recording, and its profiler would reuse the shapes of
    fake tensors in later calls with real ones.
    """
    compiled = _SCRIPT.__call__

    def call(function: Any, /, *args: Any, **kwargs: Any) -> Any:
        source = python_of_script(function)
        if source is None:
            raise CaptureError(
                f"{function.name} is compiled by TorchScript and has no Python source to record"
            )
        return source(*args, **kwargs)

    _SCRIPT.__call__ = call  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        _SCRIPT.__call__ = compiled  # type: ignore[method-assign]
