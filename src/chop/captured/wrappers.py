"""Wrappers: models inside of what torch puts around them, and models that torch has compiled."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from chop.captured.overrides import is_compiled_wrapper
from chop.errors import CaptureError, ConfigError
from chop.private.modules import wrapped_by_compile
from chop.private.transformers_api import is_of_flex_attention

_PARALLEL = (DataParallel, DistributedDataParallel)
_EXPORTED = "torch.export"


def check_is_module(value: object, where: str) -> None:
    """Checks that a model is an `nn.Module`.

    Raises:
        ConfigError: it is none; the message has the way out.

    >>> check_is_module(nn.Linear, "MaseGraph")
    Traceback (most recent call last):
    chop.errors.ConfigError: MaseGraph: expected an nn.Module, got the class Linear; pass an \
instance, Linear(...).
    """
    if isinstance(value, nn.Module):
        return
    got, way_out = type(value).__name__, ""
    if value is None:
        got = "None"
    elif isinstance(value, type):
        got, way_out = f"the class {value.__name__}", f"pass an instance, {value.__name__}(...)"
    elif _is_exported(value):
        way_out = "pass the module that was exported"
    elif isinstance(value, str | PathLike):
        way_out = (
            "to read a checkpoint, use MaseGraph.from_checkpoint(path), and of a model's name "
            "chop.models.load_model(name)"
        )
    elif isinstance(value, Mapping):
        way_out = "of a state dict, pass the model that model.load_state_dict(weights) fills"
    elif hasattr(type(value), "model"):
        way_out = f"of a {got}, pass mg.model"
    elif callable(value):
        way_out = "pass the module whose forward it is, or one that calls it"
    raise ConfigError(f"{where}: expected an nn.Module, got {got}{way_out and f'; {way_out}'}.")


def check_is_unwrapped(model: nn.Module, where: str) -> None:
    """Checks that a model is called as it was written: rows are matched with its `forward`.

    Args:
        model: model that a user gave.
        where: function or setting that received it, for the message.
    Raises:
        ConfigError: torch has compiled, traced or wrapped it; the message has the way to the model.
    """
    if isinstance(model, torch.jit.ScriptModule):
        kind, way_out = "TorchScript has compiled or traced", "the model that it was made from"
    elif is_compiled_wrapper(model):
        kind, way_out = "torch.compile has wrapped", "net._orig_mod"
    elif isinstance(model, _PARALLEL):
        kind, way_out = f"{type(model).__name__} has wrapped", "net.module"
    else:
        return
    raise ConfigError(f"{where}: got a model that {kind}; pass {way_out}, and wrap the result.")


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
        CaptureError: TorchScript has compiled the model, torch.export has made a part of it, a
            part is a wrapper that spreads its calls over processes, or its attention is
            flex_attention, which torch.compile makes of Python.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise CaptureError(
            f"expected a model with Python to record, got {model.original_name} compiled by "
            "TorchScript; pass the module that it was compiled from"
        )
    for path, module in model.named_modules():
        part = f"{path} " if path else "one "
        if _is_exported(module):
            raise CaptureError(
                f"expected a model with layers, got {part}of torch.export, which has operators in "
                "their places; pass the module that was exported"
            )
        if is_of_flex_attention(module):
            raise CaptureError(
                f"the attention of {path or type(module).__name__} is flex_attention, which "
                "torch.compile makes of a Python function for its mask, and no graph can hold; "
                'load the model with attn_implementation="sdpa", or call '
                'model.set_attn_implementation("sdpa")'
            )
        if path and isinstance(module, DistributedDataParallel):
            raise CaptureError(
                f"{path} is a DistributedDataParallel, whose calls need the other processes; put "
                f"its module in its place (model.{path} = model.{path}.module)"
            )


def _is_exported(value: Any) -> bool:
    """Whether a value is a program of `torch.export`, or a module that was made of one.

    `ExportedProgram.module()` is a graph module that has its own `train` on the instance.
    """
    made = type(value).__module__.startswith(_EXPORTED)
    return made or (isinstance(value, torch.fx.GraphModule) and "train" in vars(value))
