"""Engines for ONNX files, configured to compute without additional rounding."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.errors import first_line, shorten
from chop.export.graphs.cache import present_name
from chop.private.torch_api import has_int8_products

WIDER_SUMS = "session.x64quantprecision"
"""Setting that widens integer products, which processors with VNNI sum exactly without it."""
SESSION_CONFIG = {
    "session.qdq_matmulnbits_accuracy_level": "1",
    WIDER_SUMS: "1",
}
"""Settings without which onnxruntime rounds more than the file specifies, on any processor."""
NOT_FUSED = "optimization.disable_specified_optimizers"
"""Setting for rewritings that onnxruntime leaves out."""
SLOWER_FUSION = "SkipLayerNormFusion"
"""Rewriting whose kernel takes longer than the addition and the layer norm that it replaces."""
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
"""Setting for the folder of external weights if the graph is passed as bytes."""
FATAL = 4
Run = Callable[[Mapping[str, Tensor]], list[Tensor]]
"""Runs a file on inputs by name and returns outputs in its order; unused inputs are ignored."""


def why_missing() -> str:
    """Returns the reason why onnxruntime cannot be imported; "" if it can."""
    try:
        importlib.import_module("onnxruntime")
    except Exception as error:  # compiled code that does not fit the machine raises what it likes
        return shorten(first_line(error))
    return ""


def run(proto: Any, inputs: Mapping[str, Tensor], folder: Path | None = None) -> list[Tensor]:
    """Returns the outputs of an `onnx.ModelProto`, computed by onnxruntime on the CPU.

    Args:
        proto: the graph.
        inputs: inputs by name.
        folder: folder of its weights; None if the graph contains them.
    """
    entries = {} if folder is None else {WEIGHTS_FOLDER: str(folder)}
    return _opened(proto.SerializeToString(), entries)(inputs)


def opened(model: Path | bytes) -> Run:
    """Opens an ONNX file, or its contents, in onnxruntime on the CPU with torch's threads."""
    return _opened(str(model) if isinstance(model, Path) else model, {})


def _opened(model: str | bytes, entries: Mapping[str, str]) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), FATAL
    for name, value in {**onnxruntime_settings(), **entries}.items():
        options.add_session_config_entry(name, value)
    session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    results = [each.name for each in session.get_outputs()]

    def outputs(inputs: Mapping[str, Tensor]) -> list[Tensor]:
        given = {name: inputs[name].numpy() for name in names}
        return [torch.from_numpy(x) for x in session.run(results, given)]

    return outputs


def onnxruntime_settings() -> dict[str, str]:
    """Returns session settings for this processor; `SESSION_CONFIG` has those for any processor."""
    settings = {**SESSION_CONFIG, NOT_FUSED: SLOWER_FUSION}
    if has_int8_products():
        del settings[WIDER_SUMS]
    return settings


def opened_by_openvino(path: Path) -> Run:
    """Opens an ONNX file in OpenVINO on the CPU in float32, with torch's number of threads."""
    run = named_by_openvino(path)
    return lambda inputs: [x for _, x in run(inputs)]


def named_by_openvino(path: Path) -> Callable[[Mapping[str, Tensor]], list[tuple[str, Tensor]]]:
    """Opens a file like `opened_by_openvino`, also OpenVINO's own files, with named outputs.

    A decoder's states, see `chop.export.openvino_states`, are set to its past before each call.
    """
    import openvino

    compiled = openvino.Core().compile_model(path, "CPU", openvino_settings())
    request = compiled.create_infer_request()
    names = [port.any_name for port in compiled.inputs]

    def outputs(inputs: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
        for state in request.query_state():
            state.state = openvino.Tensor(inputs[state.name].numpy())
        results = request.infer({name: inputs[name].numpy() for name in names})
        named = {port.any_name: results[port] for port in compiled.outputs}
        named |= {present_name(each.name): each.state.data for each in request.query_state()}
        return [(name, torch.from_numpy(x.copy())) for name, x in named.items()]

    return outputs


def openvino_settings() -> dict[str, Any]:
    """Returns OpenVINO settings for torch's number of threads and no additional rounding."""
    return {
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
