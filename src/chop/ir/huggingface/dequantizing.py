"""Dequantization of transformers models: packed weights are replaced by decoded ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from chop.captured.joined import joined_names
from chop.captured.layers.experts import FusedExperts
from chop.errors import ConfigError, enumerate_names
from chop.ir.huggingface.skeleton import empty_model
from chop.ir.huggingface.stored import quantized_leaves
from chop.ir.huggingface.tying import tie_codes
from chop.nn.hadamard import Rotated
from chop.nn.lora import LoraLinear
from chop.nn.packed import PackedOperator
from chop.nn.packed.state import BUFFER_NAMES
from chop.nn.quantized import QuantizedOperator
from chop.nn.transposed import stores_transposed
from chop.private.modules import has_forward_hooks, own_buffers, own_parameters

MAX_NAMES = 4


def decode_modules(model: Any, dtype: torch.dtype | None = None) -> None:
    """Replaces quantized modules by float modules of the model's original classes.

    Weights get the values of the codes; inputs and results are no longer rounded. Layers that share
    codes share a weight.

    Args:
        model: a `PreTrainedModel`, changed in place.
        dtype: dtype of the weights; None uses the compute dtype of each layer.

    Raises:
        ConfigError: if modules are not layers of the original model; nothing is changed.
    """
    layers = dict(quantized_leaves(model))
    plain = empty_model(type(model).__name__, model.config)
    _check(model, layers, plain)
    assert plain is not None
    known: dict[tuple[int, ...], nn.Parameter] = {}
    for path, layer in layers.items():
        parent, _, name = path.rpartition(".")
        module = _decoded(layer, plain.get_submodule(path), dtype, known)
        setattr(model.get_submodule(parent), name, module)
    tie_codes(model)


def _check(model: nn.Module, layers: dict[str, QuantizedOperator], plain: nn.Module | None) -> None:
    """Raises ConfigError for modules that cannot be replaced by the original float module."""
    if plain is None:
        raise ConfigError(
            f"dequantize: {type(model).__name__} is not a transformers class; expected one."
        )
    owned = {
        path: "a mixture of experts, a joined attention, a rotation or an adapter"
        for path, module in model.named_modules()
        if path
        and (isinstance(module, FusedExperts | Rotated | LoraLinear) or joined_names(module))
    }
    present = dict(plain.named_modules(remove_duplicate=False))
    owned |= {path: "in a module of another class" for path in layers if path not in present}
    owned |= {
        path: "called with hooks"
        for path, layer in layers.items()
        if has_forward_hooks(layer) and path not in owned
    }
    if owned:
        first = next(iter(owned.values()))
        names = [f"'{path}'" for path, reason in owned.items() if reason == first]
        raise ConfigError(
            f"dequantize: {enumerate_names(names, MAX_NAMES)}: {first}; expected layers."
        )


def _decoded(
    layer: QuantizedOperator,
    module: nn.Module,
    dtype: torch.dtype | None,
    known: dict[tuple[int, ...], nn.Parameter],
) -> nn.Module:
    """Fills an empty module with the values of a layer."""
    parameters = own_parameters(module)
    for name in [name for name, x in parameters.items() if x is not None]:
        key = _identity(layer, name)
        if key not in known:
            known[key] = nn.Parameter(_value(layer, name, dtype))
        parameters[name] = known[key]
    buffers = own_buffers(module)
    buffers.update({name: own_buffers(layer)[name] for name in buffers})
    return module.train(layer.training)


def _identity(layer: QuantizedOperator, name: str) -> tuple[int, ...]:
    """Returns a key that is equal for layers with the same stored value."""
    if isinstance(layer, PackedOperator) and name in layer.packed_shapes:
        return tuple(id(own_buffers(layer).get(buffer)) for buffer in BUFFER_NAMES[name])
    return (id(own_parameters(layer).get(name)),)


def _value(layer: QuantizedOperator, name: str, dtype: torch.dtype | None) -> Tensor:
    """Returns a parameter with its effective values, in the layout of the original class."""
    with torch.no_grad():
        value: Tensor = getattr(layer, name).detach()
        if not (isinstance(layer, PackedOperator) and name in layer.packed_shapes):
            value = layer.spec.number_format(name).round(value)
        value = value.t() if name == "weight" and stores_transposed(layer) else value
        return value.to(dtype or value.dtype).clone(memory_format=torch.contiguous_format)
