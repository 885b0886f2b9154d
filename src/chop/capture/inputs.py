"""Example inputs (dummy inputs) for models without any."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from chop.capture.huggingface.inputs import INPUT_MAKERS, InputSizes, default_names
from chop.errors import CaptureError, ConfigError, describe, did_you_mean

BATCH = 3
LENGTH = 14
"""Sizes of the examples, distinct from each other and from one so that they cannot be confused."""


def check_example(example: object, where: str) -> None:
    """Checks that example inputs are tensors by name; values other than arrays are not checked.

    Raises:
        ConfigError: if they are not a mapping, or an input is a NumPy array.

    >>> check_example([1], "dummy_in")
    Traceback (most recent call last):
    chop.errors.ConfigError: dummy_in: expected a mapping of inputs by parameter name, such as \
{'x': tensor}, got list.
    """
    if not isinstance(example, Mapping):
        raise ConfigError(
            f"{where}: expected a mapping of inputs by parameter name, such as {{'x': tensor}}, "
            f"got {type(example).__name__}."
        )
    for name, value in example.items():
        if isinstance(value, np.ndarray):
            raise ConfigError(
                f"{where}[{name!r}]: expected a tensor, got a NumPy array; convert it with "
                "torch.from_numpy, to the model's dtype."
            )


def check_parameters(
    model: nn.Module, names: Iterable[str], allows_others: bool = True
) -> Mapping[str, inspect.Parameter]:
    """Checks names of inputs and returns the parameters of the model's `forward`.

    Args:
        model: any module.
        names: names of inputs.
        allows_others: accept any name if `forward` has `**kwargs`.
    Raises:
        ConfigError: if a name is not a parameter, or the names are a single text.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model: expected a module, got {describe(model)}.")
    if isinstance(names, str):
        raise ConfigError(
            f"expected a list of names of inputs, got {describe(names)}; pass [{names!r}]."
        )
    parameters = inspect.signature(model.forward).parameters
    for name in names:
        if name in parameters and parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            raise ConfigError(
                f"{type(model).__name__}.forward takes *{name}, and inputs of a graph have names; "
                "write a forward with one parameter for each input, such as forward(self, x, y)."
            )
    if allows_others and any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return parameters
    for name in names:
        if name not in parameters:
            raise ConfigError(
                f"expected a parameter of {type(model).__name__}.forward, got {describe(name)}; "
                f"{did_you_mean(name, parameters)}"
            )
    return parameters


def check_are_complete(model: nn.Module, names: Collection[str]) -> None:
    """Raises ConfigError if a parameter of `forward` has no default and is not among the names."""
    for name, each in inspect.signature(model.forward).parameters.items():
        is_named = each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        if is_named and each.default is each.empty and name not in names:
            raise ConfigError(
                f"{type(model).__name__}.forward has no default for '{name}': expected an example "
                f"of it, dummy_in={{'{name}': ...}}, or a value in cf_args."
            )


def dummy_inputs(
    model: nn.Module,
    names: Sequence[str] | None = None,
    batch: int = BATCH,
    length: int = LENGTH,
    device: torch.device | str | None = None,
) -> dict[str, Any]:
    """Returns random inputs that a model accepts, by parameter name of its `forward`.

    Floating-point inputs have the dtype of the parameters.

    Args:
        model: a Hugging Face model (uses its configuration, without the hub), a module with a
            mapping `dummy_inputs`, or one with a single input whose first layer determines the
            shape.
        names: inputs to create. Default: the required ones.
        batch: batch size.
        length: sequence length.
        device: device of the inputs. Default: that of the parameters.

    Raises:
        ConfigError: a name is not a parameter of `forward`.
        CaptureError: the inputs cannot be derived; pass `dummy_in`.
    """
    check_parameters(model, names or (), allows_others=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if not _has_config(model):
            made = _plain_inputs(model, names, batch, length)
        else:
            sizes = InputSizes(model, model.config, batch, length)
            chosen = default_names(model) if names is None else names
            made = {name: _make(model, name, sizes) for name in chosen}
    return {name: _like_parameters(model, value, device) for name, value in made.items()}


def is_guessed(model: nn.Module) -> bool:
    """Returns whether `dummy_inputs` has to infer the inputs from the first layer."""
    return not _has_config(model) and not isinstance(getattr(model, "dummy_inputs", None), Mapping)


def _has_config(model: nn.Module) -> bool:
    return hasattr(getattr(model, "config", None), "to_dict")


def _like_parameters(model: nn.Module, value: Any, device: torch.device | str | None) -> Any:
    """Returns a tensor on `device` (default: that of the parameters), floats in their dtype."""
    if not isinstance(value, Tensor):
        return value
    parameters = [*model.parameters(), *model.buffers()]
    # Types of one byte are storage formats, in which no layer takes its inputs.
    floats = (p.dtype for p in parameters if p.is_floating_point() and p.dtype.itemsize > 1)
    dtype = next(floats, value.dtype) if value.is_floating_point() else value.dtype
    own = parameters[0].device if parameters else value.device
    return value.to(own if device is None else device, dtype)


def _make(model: nn.Module, name: str, sizes: InputSizes) -> Tensor:
    if name not in INPUT_MAKERS:
        raise CaptureError(_no_inputs_message(model, [name]))
    try:
        return INPUT_MAKERS[name](sizes)
    except Exception as error:
        # Names and nesting of sizes differ between configurations.
        raise CaptureError(_no_inputs_message(model, [name])) from error


def _no_inputs_message(model: nn.Module, names: Sequence[str]) -> str:
    example = ", ".join(f"{name!r}: torch.randn(...)" for name in names)
    return (
        f"cannot guess the inputs {', '.join(names)} of {type(model).__name__}; "
        f"pass an example with dummy_in={{{example}}}"
    )


def _plain_inputs(
    model: nn.Module, names: Sequence[str] | None, batch: int, length: int
) -> dict[str, Any]:
    parameters = inspect.signature(model.forward).parameters
    if {each.kind for each in parameters.values()} == {inspect.Parameter.VAR_POSITIONAL}:
        check_parameters(model, parameters)
    needed = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    wanted = list(names if names is not None else needed)
    own = getattr(model, "dummy_inputs", None)
    if isinstance(own, Mapping) and own.keys() >= set(names or ()):
        return {name: own[name] for name in names or own}
    made = _first_layer_input(model, batch, length)
    if len(wanted) != 1 or made is None:
        raise CaptureError(_no_inputs_message(model, wanted))
    return {wanted[0]: made}


def _first_layer_input(model: nn.Module, batch: int, length: int) -> Tensor | None:
    """Returns an input for the first layer with a known width, in definition order."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            return torch.randn(batch, module.in_features)
        if isinstance(module, nn.Embedding):
            return torch.randint(0, module.num_embeddings, (batch, length))
        if isinstance(module, nn.Conv1d):
            return torch.randn(batch, module.in_channels, 4 * length)
        if isinstance(module, nn.Conv2d):
            return torch.randn(batch, module.in_channels, 32, 32)
        if isinstance(module, nn.Conv3d):
            return torch.randn(batch, module.in_channels, 8, 32, 32)
        if isinstance(module, nn.RNNBase):
            lead = (batch, length) if module.batch_first else (length, batch)
            return torch.randn(*lead, module.input_size)
    return None
