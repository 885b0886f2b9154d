"""Folders of LoRA adapters as PEFT reads and writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from chop.ir.graph import MaseGraph, Provenance
from chop.ir.verify import verify
from chop.lora.files import adapter_file, apply_adapter
from chop.lora.in_full import warn_about_shared_weights
from chop.lora.peft_format import read_adapter, targets_for, write_adapter
from chop.passes.base import check_graph
from chop.passes.interface.base import settings_path


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
    check_graph("save_lora_adapter_interface_pass", mg)
    folder = settings_path(pass_args, "save_dir", "save_lora_adapter_interface_pass")
    adapter = adapter_file(mg, "save_lora_adapter_interface_pass")
    warn_about_shared_weights(mg, adapter.layers, "save_lora_adapter_interface_pass")
    linears = [path for path, m in mg.model.named_modules() if isinstance(m, nn.Linear)]
    write_adapter(folder, adapter, targets_for(adapter.layers, linears))
    return mg, {"path": folder, "layers": len(adapter.layers)}


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
    check_graph("load_lora_adapter_interface_pass", mg)
    folder = settings_path(pass_args, "load_dir", "load_lora_adapter_interface_pass")
    adapter = read_adapter(folder)
    result = mg.copy()
    apply_adapter(result, adapter, folder, "load_lora_adapter_interface_pass")
    result.provenance.append(Provenance("load_lora_adapter_interface_pass", str(folder)))
    verify(result)
    return result, {"path": folder, "layers": len(adapter.layers)}
