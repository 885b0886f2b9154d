"""Reads a folder of LoRA adapters as PEFT writes it into a graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chop.ir.graph import MaseGraph, Provenance
from chop.ir.verify import verify
from chop.lora.files import apply_adapter
from chop.lora.peft_format import read_adapter
from chop.passes.base import check_graph
from chop.passes.interface.base import path_of

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
    apply_adapter(result, adapter, folder, NAME)
    result.provenance.append(Provenance(NAME, str(folder)))
    verify(result)
    return result, {"path": folder, "layers": len(adapter.layers)}
