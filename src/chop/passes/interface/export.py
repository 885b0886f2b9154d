"""Writes a graph for another engine: a file or folder that its own library reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.ir.graph import MaseGraph
from chop.passes.base import graph_pass


@dataclass(frozen=True)
class ExportConfig:
    """Settings of `export_interface_pass`.

    Attributes:
        to: a target: "onnx", "openvino", "pt2", "compressed-tensors", "gptq", "qonnx" or
            "gguf".
        path: the file or folder; folders are made, and a missing suffix of the target is added.
        tokenizer: of the model, for targets whose engines take text.
    """

    to: str
    path: Path
    tokenizer: Any = None


@graph_pass(config=ExportConfig, takes_packed=True)
def export_interface_pass(mg: MaseGraph, config: ExportConfig) -> dict[str, Any]:
    """Writes the graph for another engine, in the codes and scales that it has.

    ONNX and OpenVINO hold any graph; inputs whose format ONNX lacks are not rounded there, which a
    note says. Packages of torch hold any weights, and inputs in `integer`. Files of QONNX, made for
    hls4ml and FINN, hold any graph in formats that have one scale for a tensor or channel. Folders
    of compressed-tensors (vLLM, SGLang, transformers) and GPTQ (vLLM, SGLang, GPTQModel), and files
    of GGUF (llama.cpp) hold weights of models of transformers, in formats that those engines know,
    and the first of them 8-bit inputs; what is quantized and not packed is packed for them. What
    the target cannot hold is listed by module in the error, before anything is written for it.

    Returns:
        path: what was written.
        size_bytes: of all its files.
        notes: sentences on what a user of the files would not expect, as formats that became
            floats.
        read: a function: the path -> what gives outputs by name of inputs by name, as the target's
            library computes them; of folders of GPTQ chop itself.

    Raises:
        ConfigError: the target is unknown, or cannot hold a module.
        GraphError: torch's exporter lacks an operator, or the model cannot be given back.
        UnavailableError: a library is not installed.

    Example::

        _, info = export_interface_pass(mg, {"to": "gguf", "path": "model.gguf"})
    """
    # Registers operators with torch, which takes as long as importing all other engines.
    from chop.export.targets import target

    kind = target(config.to)
    made = kind.export(mg, config.path, config.tokenizer)
    return {
        "path": made.path,
        "size_bytes": made.size_bytes,
        "notes": list(made.notes),
        "read": kind.read,
    }
