"""OpenVINO target: `.xml` and `.bin` files, converted from ONNX by OpenVINO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chop.base.files import atomic_files
from chop.base.files.temporary import scratch_folder
from chop.export.graphs.cache import from_cache
from chop.export.graphs.flat import named_tensors
from chop.export.onnx.decoded_weights import openvino_weights
from chop.export.onnx.export import NEEDS
from chop.export.onnx.grouped import has_float_inputs
from chop.export.onnx.session import named_by_openvino
from chop.export.onnx.target import write_in_float32
from chop.export.target import Runner, Target
from chop.ir.graph import MaseGraph

ROUNDS = (
    "OpenVINO also rounds the inputs of layers with coded weights and float inputs, unless you "
    "compile the model with DYNAMIC_QUANTIZATION_GROUP_SIZE 0"
)
FOLDED = (
    "a batch norm is folded into the weight: OpenVINO's converter folds it into scales, torch's "
    "exporter into floats"
)
"""Reason why a weight may differ."""


def write(mg: MaseGraph, path: Path, tokenizer: Any = None) -> dict[str, Any]:
    """Writes a graph as OpenVINO files, converted from ONNX.

    Args:
        mg: graph; it is not changed.
        path: path of the `.xml` file; weights are stored next to it in a `.bin` file.
        tokenizer: ignored, because such files have none.
    Returns: `path`, `notes`, and the result of `chop.export.onnx.export`.

    Raises:
        UnavailableError: if OpenVINO, onnx or onnxscript is not installed.
        ConfigError, GraphError, VerificationError: see the export to ONNX.
    """
    TARGET.require()
    import openvino

    with scratch_folder("openvino") as folder:
        file = folder / "model.onnx"
        written = write_in_float32(mg, file)
        del written["files"]  # which are of ONNX
        model = openvino.convert_model(file)
    with atomic_files(path.parent, "model") as fresh:
        openvino.save_model(model, fresh / path.name, compress_to_fp16=False)
    if any(has_float_inputs(mg.model.get_submodule(name)) for name in written["quantized"]):
        written["notes"].append(ROUNDS)
    return {"path": path, **written}


def read(path: Path) -> Runner:
    """Opens the files in OpenVINO on the CPU, in float32 if the file specifies it."""
    import openvino

    run = named_by_openvino(path)
    ports = openvino.Core().read_model(path).inputs
    shapes = {port.any_name: [x.get_min_length() for x in port.partial_shape] for port in ports}
    return from_cache(lambda inputs: dict(run(named_tensors(inputs))), shapes)


TARGET = Target(
    "openvino",
    "OpenVINO",
    "as onnx",
    "openvino",
    "openvino",
    ".xml",
    write,
    read,
    weights=openvino_weights,
    weight_cause=FOLDED,
    needs=NEEDS,
    beside=(".bin",),
    takes_cache=True,
)
