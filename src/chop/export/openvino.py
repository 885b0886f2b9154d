"""OpenVINO: its own files (`.xml` and `.bin`), converted from ONNX by OpenVINO."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.export.flat import named_tensors
from chop.export.onnx.export import NEEDS
from chop.export.onnx.grouped import has_float_inputs
from chop.export.onnx.session import openvino_settings
from chop.export.onnx.target import write_in_float32
from chop.export.target import Runner, Target
from chop.files import atomic_files
from chop.ir.graph import MaseGraph

ROUNDS = (
    "OpenVINO rounds the inputs of layers whose weights alone are codes, unless it compiles the "
    "model with DYNAMIC_QUANTIZATION_GROUP_SIZE 0"
)


def write(mg: MaseGraph, path: Path, tokenizer: Any = None) -> dict[str, Any]:
    """Writes a graph as OpenVINO's files, by way of ONNX.

    Args:
        mg: the graph; it stays as it is.
        path: the `.xml` file; weights are beside it in a `.bin` file.
        tokenizer: is not part of such files.
    Returns: `path`, `notes`, and what `chop.export.onnx.export` gives.

    Raises:
        UnavailableError: OpenVINO, onnx or onnxscript are not installed.
        ConfigError, GraphError, VerificationError: as the export to ONNX does.
    """
    TARGET.require()
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.onnx")
        found = write_in_float32(mg, file)
        del found["files"]  # which are of ONNX
        model = openvino.convert_model(file)
    with atomic_files(path.parent, "model") as fresh:
        openvino.save_model(model, fresh / path.name, compress_to_fp16=False)
    if any(has_float_inputs(mg.model.get_submodule(name)) for name in found["quantized"]):
        found["notes"].append(ROUNDS)
    return {"path": path, **found}


def read(path: Path) -> Runner:
    """The files as OpenVINO runs them on the CPU, in float32 where the file says so."""
    import openvino

    core = openvino.Core()
    request = core.compile_model(path, "CPU", openvino_settings()).create_infer_request()
    inputs = [port.any_name for port in request.model_inputs]

    def answers(given: Mapping[str, Any]) -> dict[str, Tensor]:
        tensors = named_tensors(given)
        found = request.infer({name: tensors[name].numpy() for name in inputs})
        return {port.any_name: torch.from_numpy(x.copy()) for port, x in found.items()}

    return answers


TARGET = Target(
    "openvino",
    "OpenVINO",
    "openvino",
    "openvino",
    ".xml",
    write,
    read,
    needs=NEEDS,
    beside=(".bin",),
)
