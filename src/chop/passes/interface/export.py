"""Export of a graph to another engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.passes.base import graph_pass


@dataclass(frozen=True)
class ExportConfig:
    """Settings of `export_interface_pass`.

    Attributes:
        to: target: "onnx", "openvino", "pt2", "compressed-tensors", "gptq", "qonnx" or "gguf".
        path: output file or folder; missing folders are created, and a missing suffix is added.
        tokenizer: tokenizer of the model, for engines that take text.
    """

    to: str
    path: Path
    tokenizer: Any = None

    def __post_init__(self) -> None:
        if isinstance(self.tokenizer, str | Path):
            raise ConfigError(
                f"tokenizer: expected one of transformers, got the name '{self.tokenizer}': pass "
                f"chop.data.get_tokenizer('{self.tokenizer}')."
            )


@graph_pass(config=ExportConfig, takes_packed=True)
def export_interface_pass(mg: MaseGraph, config: ExportConfig) -> dict[str, Any]:
    """Exports the graph to another engine with identical codes and scales.

    ONNX and OpenVINO support any graph; inputs in formats that ONNX lacks are not rounded, which a
    note states. PT2 packages support any weights, and inputs in `integer`. QONNX, for hls4ml and
    FINN, supports any graph with one scale per tensor or channel. Compressed-tensors (vLLM, SGLang,
    transformers), GPTQ (vLLM, SGLang, GPTQModel) and GGUF (llama.cpp) support weights of
    transformers models in the formats of these engines, and compressed-tensors also 8-bit inputs.
    Quantized layers are packed for them. If the target does not support a module, the error lists
    all such modules before anything is written.

    Returns:
        path: the written file or folder.
        size_bytes: size of all its files.
        notes: unexpected properties of the files, such as formats exported as floats.
        read: function: path -> a function from inputs by name to outputs by name, computed by the
            target's library (for GPTQ by chop).

    Raises:
        ConfigError: if the target is unknown or does not support a module.
        GraphError: if torch's exporter lacks an operator, or the model cannot be restored from the
            graph.
        UnavailableError: if a library is not installed.

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
