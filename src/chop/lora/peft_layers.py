"""PEFT layers on packed layers.

`ModulesToSaveWrapper` copies a layer and trains the copy's parameters. Codes cannot be trained, so
the copy is unpacked, and packed again when it is unloaded. Adapters of convolutions are created by
the class of the layer, here the unpacked one.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

from torch import nn

from chop.nn.packed import PackedOperator, pack, why_not_packable, write
from chop.nn.quantized import QuantizedOperator
from chop.private.modules import own_children
from chop.private.peft_api import convolution_class, saved_layer_class

_saved, _convolution = saved_layer_class(), convolution_class()
_update = _saved.update
_unload = _saved.unload_and_optionally_merge_module
_update_conv = _convolution.update_layer


def _has_codes(module: nn.Module) -> bool:
    return any(isinstance(part, PackedOperator) for part in module.modules())


def _replaced(module: nn.Module, make: Any) -> nn.Module:
    """Returns a module with its quantized operators replaced by the results of `make`."""
    if isinstance(module, QuantizedOperator):
        made: nn.Module = make(module)
        return made
    for name, child in list(own_children(module).items()):
        if child is not None:
            own_children(module)[name] = _replaced(child, make)
    return module


def _unpacked(layer: QuantizedOperator) -> nn.Module:
    return layer.unpack() if isinstance(layer, PackedOperator) else layer


def _packed(layer: QuantizedOperator) -> nn.Module:
    if why_not_packable(layer) is not None:
        return layer
    twin = pack(layer)
    twin.packed_trainable = ()
    return twin


@functools.wraps(_update)
def _update_unpacked(self: Any, adapter_name: str, tied_module: Any = None, **kwargs: Any) -> None:
    original = self.original_module
    if not _has_codes(original):
        _update(self, adapter_name, tied_module, **kwargs)
        return
    original.requires_grad_(False)
    is_new = adapter_name not in self.modules_to_save
    self.original_module = _replaced(copy.deepcopy(original), _unpacked)
    try:
        _update(self, adapter_name, tied_module, **kwargs)
        if is_new and tied_module is not None and isinstance(self.original_module, nn.Linear):
            self.original_module.weight = tied_module.weight
            self.modules_to_save[adapter_name] = self.original_module
    finally:
        self.original_module = original


@functools.wraps(_unload)
def _unload_packed(self: Any, *args: Any, **kwargs: Any) -> nn.Module:
    unloaded: nn.Module = _unload(self, *args, **kwargs)
    return _replaced(unloaded, _packed) if _has_codes(self.original_module) else unloaded


@functools.wraps(_update_conv)
def _update_packed_conv(self: Any, *args: Any, **kwargs: Any) -> None:
    layer = self.get_base_layer()
    if not isinstance(layer, PackedOperator):
        _update_conv(self, *args, **kwargs)
        return
    stand_in: Any = layer.unpack()
    vars(self)["get_base_layer"] = lambda: stand_in
    try:
        _update_conv(self, *args, **kwargs)
    finally:
        del vars(self)["get_base_layer"]
    write(layer, "weight", stand_in.weight)  # without what the adapter starts with


_convolution.update_layer = _update_packed_conv
_saved.update = _update_unpacked
_saved.unload_and_optionally_merge_module = _unload_packed
