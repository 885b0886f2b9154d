"""Wrappers: models inside of what torch puts around them, and models that torch has compiled."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from chop.captured.overrides import is_compiled_wrapper
from chop.errors import CaptureError
from chop.private.modules import wrapped_by_compile

_PARALLEL = (DataParallel, DistributedDataParallel)
_EXPORTED = "torch.export"


def unwrapped(model: nn.Module) -> nn.Module:
    """The model that `torch.compile`, `DataParallel` or `DistributedDataParallel` has wrapped.

    >>> layer = nn.Linear(2, 2)
    >>> unwrapped(torch.compile(nn.DataParallel(layer))) is layer
    True
    """
    while True:
        if is_compiled_wrapper(model):
            model = wrapped_by_compile(model)
        elif isinstance(model, _PARALLEL):
            model = model.module
        else:
            return model


def check_has_python(model: nn.Module) -> None:
    """Checks that a model has layers, and Python that calls them.

    Submodules that TorchScript has compiled become nodes.

    Raises:
        CaptureError: TorchScript has compiled the model, torch.export has made a part of it, or a
            part is a wrapper that spreads its calls over processes.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise CaptureError(
            f"expected a model with Python to record, got {model.original_name} compiled by "
            "TorchScript; pass the module that it was compiled from"
        )
    for path, module in model.named_modules():
        part = f"{path} " if path else "one "
        if is_exported(module):
            raise CaptureError(
                f"expected a model with layers, got {part}of torch.export, which has operators in "
                "their places; pass the module that was exported"
            )
        if path and isinstance(module, DistributedDataParallel):
            raise CaptureError(
                f"{path} is a DistributedDataParallel, whose calls need the other processes; put "
                f"its module in its place (model.{path} = model.{path}.module)"
            )


def is_exported(value: Any) -> bool:
    """Whether a value is a program of `torch.export`, or a module that was made of one.

    `ExportedProgram.module()` is a graph module that has its own `train` on the instance.
    """
    made = type(value).__module__.startswith(_EXPORTED)
    return made or (isinstance(value, torch.fx.GraphModule) and "train" in vars(value))
