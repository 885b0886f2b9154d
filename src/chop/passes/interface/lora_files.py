"""Folders of LoRA adapters in PEFT's format."""

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

    `peft.PeftModel.from_pretrained(original_model, folder)` then computes the same as the graph,
    unless the graph was quantized or pruned, or an adapted module is at two paths of the model, of
    which PEFT adapts only one. Other trained parameters are written as well: biases under PEFT's
    `bias`, modules under its `modules_to_save`, including all modules that share a weight. A
    warning names adapted layers that share their weight, since PEFT's `merge_and_unload` would also
    change the other modules.

    Args:
        mg: graph with adapters, which is returned unchanged.
        pass_args: folder, or `{"save_dir": folder}`.
    Returns: the graph, and `{"path": the folder, "layers": number of adapters}`.

    Raises:
        GraphError: if the graph has no adapter, or a trained parameter that the format cannot
            store.
        ConfigError: if there is no folder in the settings.
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
    """Returns a copy of the graph with adapters from a folder of PEFT or chop.

    Existing adapters are replaced. A graph without adapters gets them, and afterwards only the
    parameters trained in the file are trainable. All options of LoRA on linear layers are
    supported: `target_modules`, ranks and alphas by layer, `use_rslora`, biases, `modules_to_save`.

    Args:
        mg: graph of the adapters' base model, which is not changed.
        pass_args: folder, or `{"load_dir": folder}`.
    Returns: the copy, and `{"path": the folder, "layers": number of adapters}`.

    Raises:
        CheckpointError: if files are missing or broken, do not fit the model, or use another method
            (such as DoRA).
        GraphError: if the graph has adapters on other layers than the file.
        ConfigError: if there is no folder in the settings.
    """
    check_graph("load_lora_adapter_interface_pass", mg)
    folder = settings_path(pass_args, "load_dir", "load_lora_adapter_interface_pass")
    adapter = read_adapter(folder)
    result = mg.copy()
    apply_adapter(result, adapter, folder, "load_lora_adapter_interface_pass")
    result.provenance.append(Provenance("load_lora_adapter_interface_pass", str(folder)))
    verify(result)
    return result, {"path": folder, "layers": len(adapter.layers)}
