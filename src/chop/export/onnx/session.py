"""Engines that run ONNX files and compute what they say: onnxruntime and OpenVINO."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.errors import first_line, shorten

SESSION_CONFIG = {
    "session.qdq_matmulnbits_accuracy_level": "1",
    "session.x64quantprecision": "1",
}
"""Entries without which onnxruntime rounds more than the file says."""
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
"""The entry for where weights are that are beside a graph which comes as bytes."""
FATAL = 4
Run = Callable[[Mapping[str, Tensor]], list[Tensor]]
"""Outputs in the file's order, of inputs by name; inputs that the file does not read are left."""


def why_missing() -> str:
    """Returns the reason why onnxruntime cannot be imported; "" if it can."""
    try:
        importlib.import_module("onnxruntime")
    except Exception as error:  # compiled code that does not fit the machine raises what it likes
        return shorten(first_line(error))
    return ""


def run(proto: Any, inputs: Mapping[str, Tensor], folder: Path | None = None) -> list[Tensor]:
    """Outputs of an `onnx.ModelProto` on the CPU, by onnxruntime.

    Args:
        proto: the graph.
        inputs: by name.
        folder: of its weights; None: it has them.
    """
    entries = {} if folder is None else {WEIGHTS_FOLDER: str(folder)}
    return _opened(proto.SerializeToString(), entries)(inputs)


def opened(path: Path) -> Run:
    """What onnxruntime computes of an ONNX file on the CPU, by as many threads as torch has."""
    return _opened(str(path), {})


def _opened(model: str | bytes, entries: Mapping[str, str]) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), FATAL
    for name, value in {**SESSION_CONFIG, **entries}.items():
        options.add_session_config_entry(name, value)
    session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def outputs(inputs: Mapping[str, Tensor]) -> list[Tensor]:
        given = {name: inputs[name].numpy() for name in names}
        return [torch.as_tensor(x) for x in session.run(None, given)]

    return outputs


def opened_by_openvino(path: Path) -> Run:
    """What OpenVINO computes of an ONNX file on the CPU in float32, by torch's threads."""
    run = named_by_openvino(path)
    return lambda inputs: [x for _, x in run(inputs)]


def named_by_openvino(path: Path) -> Callable[[Mapping[str, Tensor]], list[tuple[str, Tensor]]]:
    """As `opened_by_openvino`, of OpenVINO's own files too, with the outputs' names."""
    import openvino

    compiled = openvino.Core().compile_model(path, "CPU", openvino_settings())
    request = compiled.create_infer_request()
    names = [port.any_name for port in compiled.inputs]

    def outputs(inputs: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
        found = request.infer({name: inputs[name].numpy() for name in names})
        ports = compiled.outputs
        return [(port.any_name, torch.from_numpy(found[port].copy())) for port in ports]

    return outputs


def openvino_settings() -> dict[str, Any]:
    """Settings with which OpenVINO rounds no more than a file says, by torch's threads."""
    return {
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
