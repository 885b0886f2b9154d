"""Conversion of adapters between a graph and PEFT's file format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from chop.errors import CheckpointError, GraphError, did_you_mean
from chop.ir.graph import MaseGraph
from chop.lora.in_full import are_tied_pairs, copy_in_full, is_inside, trained_in_full
from chop.lora.layers import attach, list_linears
from chop.lora.peft_format import AdapterFile, LayerFile
from chop.nn.lora import LoraLinear, freeze, list_adapters
from chop.nn.transposed import stores_transposed


def apply_adapter(mg: MaseGraph, adapter: AdapterFile, folder: Path, where: str) -> None:
    """Adds the adapters of a file to a graph, in place.

    Args:
        mg: graph of the adapters' base model. If it has no adapters yet, everything else is frozen.
        adapter: content of the file.
        folder: folder of the file, for messages.
        where: name of the pass, for messages.

    Raises:
        CheckpointError: if the file does not fit the model.
        GraphError: if the graph has adapters on other layers than the file.
    """
    linears = list_linears(mg)
    _check(mg, linears, adapter, folder, where)
    if not list_adapters(mg.model):
        freeze(mg.model)
    attach(mg, {p: _layer(linears[p], file, adapter) for p, file in adapter.layers.items()})
    copy_in_full(mg, adapter)


def adapter_file(mg: MaseGraph, where: str) -> AdapterFile:
    """Returns the adapters of a graph, and its other trained parameters, for PEFT's file format.

    Raises:
        GraphError: if the graph has no adapter, or a trained parameter that the format cannot
            store.
    """
    layers = list_adapters(mg.model)
    if not layers:
        raise GraphError(
            f"{where}: the graph has no adapter; insert_lora_adapter_transform_pass(mg, {{...}}) "
            "adds them."
        )
    shared = {(layer.use_rslora, layer.lora_dropout.p) for layer in layers.values()}
    if len(shared) > 1:
        raise GraphError(
            f"{where}: use_rslora or dropout differ; the format stores one value for all layers."
        )
    use_rslora, dropout = shared.pop()
    bias, biases, saved = trained_in_full(mg, layers, where)
    state = mg.model.state_dict()
    inside = [key for key in state if is_inside(key, saved)]
    return AdapterFile(
        layers={
            path: LayerFile(layer.lora_A.weight, layer.lora_B.weight, layer.alpha)
            for path, layer in layers.items()
        },
        full={key: state[key] for key in [*biases, *inside]},
        dropout=dropout,
        use_rslora=use_rslora,
        modules_to_save=tuple(saved),
        bias=bias,
        base_model=getattr(getattr(mg.model, "config", None), "name_or_path", None) or None,
        # PEFT takes it as said for its own layers around GPT-2's Conv1D, which store (in, out).
        fan_in_fan_out=all(map(stores_transposed, layers.values())),
        ensure_weight_tying=are_tied_pairs(mg, saved),
    )


def _check(
    mg: MaseGraph,
    linears: Mapping[str, nn.Linear],
    adapter: AdapterFile,
    folder: Path,
    where: str,
) -> None:
    modules, state = mg.modules, mg.model.state_dict()
    for path in adapter.layers:
        if path not in linears:
            problem = (
                f"is a {type(modules[path]).__name__}" if path in modules else ("does not exist")
            )
            near = did_you_mean(path, linears)
            raise CheckpointError(
                f"'{folder}': its layer '{path}' {problem}, expected a linear layer: {near}"
            )
    for path, file in adapter.layers.items():
        _check_shapes(folder, path, file, linears[path])
    for key, value in adapter.full.items():
        if key not in state:
            raise CheckpointError(f"'{folder}': unknown key '{key}': {did_you_mean(key, state)}")
        if state[key].shape != value.shape:
            raise CheckpointError(
                f"'{folder}': '{key}' has shape {tuple(value.shape)}, the model's has "
                f"{tuple(state[key].shape)}."
            )
    others = sorted(list_adapters(mg.model).keys() - adapter.layers.keys())
    if others:
        raise GraphError(
            f"{where}: the graph has an adapter on '{others[0]}' and '{folder}' does not; "
            "fuse or leave out the graph's adapters first."
        )


def _check_shapes(folder: Path, path: str, file: LayerFile, linear: nn.Linear) -> None:
    expected = ((file.rank, linear.in_features), (linear.out_features, file.rank))
    actual = (tuple(file.a.shape), tuple(file.b.shape))
    if actual != expected:
        raise CheckpointError(
            f"'{folder}': layer '{path}' has lora_A {actual[0]} and lora_B {actual[1]}, expected "
            f"{expected[0]} and {expected[1]}."
        )


def _layer(linear: nn.Linear, file: LayerFile, adapter: AdapterFile) -> LoraLinear:
    layer = LoraLinear.around(
        linear,
        rank=file.rank,
        alpha=file.alpha,
        dropout=adapter.dropout,
        use_rslora=adapter.use_rslora,
    )
    with torch.no_grad():
        layer.lora_A.weight.copy_(file.a)
        layer.lora_B.weight.copy_(file.b)
    return layer
