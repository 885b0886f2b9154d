"""OpenVINO: its own files (`.xml` and `.bin`), converted from ONNX by OpenVINO."""

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
    "OpenVINO rounds the inputs of layers whose weights alone are codes, unless it compiles the "
    "model with DYNAMIC_QUANTIZATION_GROUP_SIZE 0"
)
FOLDED = (
    "a batch norm is folded into the weight: by OpenVINO's converter into the scales of codes, by "
    "torch's exporter into floats"
)
"""Why a weight may differ."""


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

    with scratch_folder("openvino") as folder:
        file = folder / "model.onnx"
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
