"""Writes a graph's LoRA adapters as a folder that PEFT reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from chop.errors import GraphError
from chop.ir.graph import MaseGraph
from chop.lora.peft_format import AdapterFile, LayerFile, targets_for, write_adapter
from chop.nn.lora import ADAPTER_MODULES, LoraLinear, adapters_of
from chop.passes.base import check_graph
from chop.passes.interface.save_graph import path_of

NAME = "save_lora_adapter_interface_pass"


def save_lora_adapter_interface_pass(
    mg: MaseGraph, pass_args: str | Path | Mapping[str, Any]
) -> tuple[MaseGraph, dict[str, Any]]:
    """Writes `adapter_model.safetensors` and `adapter_config.json`, which PEFT reads.

    `peft.PeftModel.from_pretrained(original_model, folder)` then computes what the graph does, if
    the graph was not quantised or pruned and no adapted module is at two paths of the model, of
    which PEFT adapts one. What else trains in the graph is written too: biases
    under PEFT's `bias`, other modules under its `modules_to_save`.

    Args:
        mg: a graph with adapters; it is handed on as it is.
        pass_args: the folder, or `{"save_dir": folder}`.
    Returns: the graph, and `{"path": the folder, "layers": number of adapters}`.

    Raises:
        GraphError: the graph has no adapter, or something trains that the format cannot hold.
        ConfigError: no folder is named.
    """
    check_graph(NAME, mg)
    folder = path_of(pass_args, "save_dir", NAME)
    layers = adapters_of(mg.model)
    if not layers:
        raise GraphError(
            f"{NAME}: the graph has no adapter; insert_lora_adapter_transform_pass(mg, {{...}}) "
            "adds them."
        )
    linears = [path for path, m in mg.model.named_modules() if isinstance(m, nn.Linear)]
    write_adapter(folder, _adapter_file(mg, layers), targets_for(layers, linears))
    return mg, {"path": folder, "layers": len(layers)}


def _adapter_file(mg: MaseGraph, layers: Mapping[str, LoraLinear]) -> AdapterFile:
    shared = {(layer.use_rslora, layer.lora_dropout.p) for layer in layers.values()}
    if len(shared) > 1:
        raise GraphError(f"{NAME}: use_rslora or dropout differ; the format has one for all.")
    use_rslora, dropout = shared.pop()
    bias, biases, saved = _trained_in_full(mg, layers)
    state = mg.model.state_dict()
    inside = [key for key in state if key.rpartition(".")[0] in saved]
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
    )


def _trained_in_full(
    mg: MaseGraph, layers: Mapping[str, LoraLinear]
) -> tuple[str, list[str], list[str]]:
    """PEFT's `bias`, the biases that it covers, and the modules that train besides.

    Raises:
        GraphError: the weight of an adapted layer trains, or a parameter of the model itself.
    """
    own = {f"{path}.{name}.weight" for path in layers for name in ADAPTER_MODULES}
    parameters = {n: p.requires_grad for n, p in mg.model.named_parameters() if n not in own}
    biases = [name for name in parameters if name.rpartition(".")[2] == "bias"]
    adapted = [f"{path}.bias" for path in layers if f"{path}.bias" in parameters]
    bias = "none"
    if biases and all(parameters[name] for name in biases):
        bias = "all"
    elif any(parameters[name] for name in adapted):
        bias = "lora_only"
    covered = {"all": biases, "lora_only": adapted, "none": []}[bias]
    rest = [name for name, trains in parameters.items() if trains and name not in covered]
    saved = list(dict.fromkeys(name.rpartition(".")[0] for name in rest))
    for name in rest:
        if name.rpartition(".")[0] in ("", *layers):
            raise GraphError(
                f"{NAME}: '{name}' trains and PEFT's format has no place for it; freeze it, or "
                "fuse the adapters and export the graph."
            )
    return bias, covered, saved
