"""Reads a folder of LoRA adapters as PEFT writes it into a graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop.errors import CheckpointError, GraphError, did_you_mean
from chop.ir.graph import MaseGraph, Provenance
from chop.ir.verify import verify
from chop.lora.layers import attach, linears_of
from chop.lora.peft_format import AdapterFile, LayerFile, read_adapter
from chop.nn.lora import LoraLinear, adapters_of, freeze
from chop.passes.base import check_graph
from chop.passes.interface.save_graph import path_of

NAME = "load_lora_adapter_interface_pass"


def load_lora_adapter_interface_pass(
    mg: MaseGraph, pass_args: str | Path | Mapping[str, Any]
) -> tuple[MaseGraph, dict[str, Any]]:
    """A copy of the graph with the adapters that PEFT or `save_lora_adapter_interface_pass` wrote.

    A graph without adapters gets them, and only what the adapter file trained trains afterwards;
    adapters that are there already are replaced. LoRA on linear layers is read in all its forms:
    any `target_modules`, ranks and alphas by layer, `use_rslora`, biases, `modules_to_save`.

    Args:
        mg: a graph of the model for which the adapters were made; it stays as it is.
        pass_args: the folder, or `{"load_dir": folder}`.
    Returns: the copy, and `{"path": the folder, "layers": number of adapters}`.

    Raises:
        CheckpointError: files are missing or broken, do not fit the model, or are of another
            method (DoRA and the like).
        GraphError: the graph has adapters on other layers than the file.
        ConfigError: no folder is named.
    """
    check_graph(NAME, mg)
    folder = path_of(pass_args, "load_dir", NAME)
    adapter = read_adapter(folder)
    result = mg.copy()
    linears = linears_of(result)
    _check(result, linears, adapter, folder)
    if not adapters_of(result.model):
        freeze(result.model)
    attach(result, {p: _layer(linears[p], file, adapter) for p, file in adapter.layers.items()})
    _copy_in_full(result.model, adapter.full)
    result.provenance.append(Provenance(NAME, str(folder)))
    verify(result)
    return result, {"path": folder, "layers": len(adapter.layers)}


def _check(
    mg: MaseGraph, linears: Mapping[str, nn.Linear], adapter: AdapterFile, folder: Path
) -> None:
    modules, state = mg.modules, mg.model.state_dict()
    for path in adapter.layers:
        if path not in linears:
            found = f"is a {type(modules[path]).__name__}" if path in modules else "is not there"
            near = did_you_mean(path, linears)
            raise CheckpointError(
                f"'{folder}': its layer '{path}' {found}, expected a linear layer: {near}"
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
    others = sorted(adapters_of(mg.model).keys() - adapter.layers.keys())
    if others:
        raise GraphError(
            f"{NAME}: the graph has an adapter on '{others[0]}' and '{folder}' has none for it; "
            "fuse or leave out the graph's adapters first."
        )


def _check_shapes(folder: Path, path: str, file: LayerFile, linear: nn.Linear) -> None:
    expected = ((file.rank, linear.in_features), (linear.out_features, file.rank))
    found = (tuple(file.a.shape), tuple(file.b.shape))
    if found != expected:
        raise CheckpointError(
            f"'{folder}': layer '{path}' has lora_A {found[0]} and lora_B {found[1]}, expected "
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


def _copy_in_full(model: nn.Module, full: Mapping[str, Tensor]) -> None:
    for key, value in full.items():
        path, _, name = key.rpartition(".")
        owner = model.get_submodule(path)
        old = getattr(owner, name)
        new = value.to(old.device, old.dtype)
        # A new parameter: what shared the old one, like tied embeddings, keeps its values.
        setattr(owner, name, nn.Parameter(new) if isinstance(old, nn.Parameter) else new)
