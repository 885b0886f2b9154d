"""Writes a graph's LoRA adapters as a folder that PEFT reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from chop.ir.graph import MaseGraph
from chop.lora.files import adapter_file
from chop.lora.in_full import warn_of_shared_weights
from chop.lora.peft_format import targets_for, write_adapter
from chop.passes.base import check_graph
from chop.passes.interface.base import path_of

NAME = "save_lora_adapter_interface_pass"


def save_lora_adapter_interface_pass(
    mg: MaseGraph, pass_args: str | Path | Mapping[str, Any]
) -> tuple[MaseGraph, dict[str, Any]]:
    """Writes `adapter_model.safetensors` and `adapter_config.json`, which PEFT reads.

    `peft.PeftModel.from_pretrained(original_model, folder)` then computes what the graph does, if
    the graph was not quantized or pruned and no adapted module is at two paths of the model, of
    which PEFT adapts one. What else trains in the graph is written too: biases
    under PEFT's `bias`, other modules under its `modules_to_save`, of tied weights all modules that
    have them. A warning names adapted layers whose weight other modules have: PEFT's
    `merge_and_unload` would change these too.

    Args:
        mg: a graph with adapters; it is returned as it is.
        pass_args: the folder, or `{"save_dir": folder}`.
    Returns: the graph, and `{"path": the folder, "layers": number of adapters}`.

    Raises:
        GraphError: the graph has no adapter, or something trains that the format cannot hold.
        ConfigError: no folder is named.
    """
    check_graph(NAME, mg)
    folder = path_of(pass_args, "save_dir", NAME)
    adapter = adapter_file(mg, NAME)
    warn_of_shared_weights(mg, adapter.layers, NAME)
    linears = [path for path, m in mg.model.named_modules() if isinstance(m, nn.Linear)]
    write_adapter(folder, adapter, targets_for(adapter.layers, linears))
    return mg, {"path": folder, "layers": len(adapter.layers)}
