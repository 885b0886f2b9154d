"""Wrappers: models inside of torch's wrappers, and models compiled by torch."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from chop.captured.overrides import is_compiled_wrapper
from chop.errors import CaptureError, ConfigError
from chop.private.modules import wrapped_by_compile
from chop.private.transformers_api import is_of_flex_attention

_PARALLEL = (DataParallel, DistributedDataParallel)
_EXPORTED = "torch.export"
_QUANTIZED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")
"""Modules of the layers that `torch.ao.quantization` puts in place of float ones."""


def check_is_module(value: object, where: str) -> None:
    """Checks that a model is an `nn.Module`.

    Raises:
        ConfigError: it is not; the message suggests a remedy.

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
        way_out = "pass the original module"
    elif type(value).__module__.startswith("onnx") or (
        isinstance(value, str | PathLike) and str(value).endswith(".onnx")
    ):
        got = "an ONNX model"
        way_out = "pass the PyTorch model that it was exported from; onnxruntime runs ONNX"
    elif isinstance(value, str | PathLike):
        way_out = (
            "load a checkpoint by MaseGraph.from_checkpoint(path), or a model by name by "
            "chop.models.load_model(name)"
        )
    elif isinstance(value, Mapping) and "saved" in value:  # the report of a job
        got, way_out = "the numbers of a result", "use found.model"
    elif isinstance(value, Mapping):
        way_out = "load it into a model (model.load_state_dict(weights)) and pass the model"
    elif isinstance(value, list) and value and all(isinstance(x, float) for x in value):
        got, way_out = "a list of numbers", "chop.train.fit trains the model itself, so pass that"
    elif "model" in getattr(value, "__dict__", {}):
        way_out = "pass its attribute model"
    elif hasattr(type(value), "model"):
        way_out = "pass its attribute model (mg.model)"
    elif callable(value):
        way_out = "pass the module that it belongs to, or a module that calls it"
    raise ConfigError(f"{where}: expected an nn.Module, got {got}{way_out and f'; {way_out}'}.")


def check_has_forward(value: object, where: str) -> None:
    """Checks that a model is an `nn.Module` that can be called.

    Raises:
        ConfigError: it is not; the message suggests a remedy.
    """
    check_is_module(value, where)
    if getattr(value.forward, "__func__", None) is nn.Module.forward:  # type: ignore[attr-defined]
        raise ConfigError(
            f"{where}: {type(value).__name__} has no forward; pass a module that can be called."
        )


def check_is_unwrapped(model: nn.Module, where: str) -> None:
    """Checks that a model is unwrapped, since data columns are matched with its `forward`.

    Args:
        model: the user's model.
        where: function or setting that received it, for the message.
    Raises:
        ConfigError: torch has compiled, traced or wrapped it; the message explains how to get the
            model.
    """
    after = "wrap the result"
    if isinstance(model, torch.jit.ScriptModule):
        kind, way_out = "TorchScript has compiled or traced", "the original model"
        after = "trace the result (torch.jit.trace)"
    elif is_compiled_wrapper(model):
        kind, way_out = "torch.compile has wrapped", "net._orig_mod"
    elif isinstance(model, _PARALLEL):
        kind, way_out = f"{type(model).__name__} has wrapped", "net.module"
    else:
        return
    raise ConfigError(f"{where}: got a model that {kind}; pass {way_out}, and {after}.")


def check_has_values(model: nn.Module, name: str) -> None:
    """Checks that no parameter of a model is on the meta device, or of a lazy layer without sizes.

    Raises:
        ConfigError: if one is.
    """
    lazy = [path for path, value in model.named_parameters() if is_lazy(value)]
    if lazy:
        raise ConfigError(
            f"'{name}' has lazy layers whose weights have no values yet, such as {lazy[0]}; call "
            "it once on a batch, and load or train its weights."
        )
    if any(value.is_meta for value in model.parameters()):
        raise ConfigError(f"'{name}' has weights without values (device meta); load them first.")


def unwrapped(model: nn.Module) -> nn.Module:
    """Returns the model inside `torch.compile`, `DataParallel` or `DistributedDataParallel`.

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

    Submodules compiled by TorchScript become nodes.

    Raises:
        CaptureError: the model is compiled by TorchScript, a part was exported by torch.export or
            quantized by torch.ao, a part is a wrapper that distributes its calls over processes, or
            its attention is flex_attention, which torch.compile generates from Python.
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
                "their place; pass the original module"
            )
        if type(module).__module__.startswith(_QUANTIZED):
            raise CaptureError(
                f"expected a float model, got {part}of torch.ao.quantization "
                f"({type(module).__name__}), which has integer weights; pass the model that it was "
                "made from"
            )
        if is_of_flex_attention(module):
            raise CaptureError(
                f"the attention of {path or type(module).__name__} is flex_attention, which "
                "torch.compile generates from a mask function and a graph cannot represent; "
                'load the model with attn_implementation="sdpa", or call '
                'model.set_attn_implementation("sdpa")'
            )
        if path and isinstance(module, DistributedDataParallel):
            raise CaptureError(
                f"{path} is a DistributedDataParallel, whose calls need the other processes; "
                f"replace it by its module (model.{path} = model.{path}.module)"
            )


def _is_exported(value: Any) -> bool:
    """Returns whether a value is a program of `torch.export`, or a module created from one.

    `ExportedProgram.module()` is a graph module that has its own `train` on the instance.
    """
    made = type(value).__module__.startswith(_EXPORTED)
    return made or (isinstance(value, torch.fx.GraphModule) and "train" in vars(value))
