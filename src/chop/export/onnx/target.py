"""ONNX target: files for onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.errors import enumerate_names
from chop.export.graphs.cache import from_cache
from chop.export.graphs.flat import named_tensors
from chop.export.language_model import require_no_model
from chop.export.onnx.decoded_weights import FOLDED, onnx_weights
from chop.export.onnx.export import NEEDS, export
from chop.export.onnx.genai import write_genai_files
from chop.export.onnx.session import Run, opened
from chop.export.refusals import MOST_LISTED
from chop.export.target import Runner, Target
from chop.ir.graph import MaseGraph

LACKS = "ONNX lacks their formats"


def write(mg: MaseGraph, path: Path, tokenizer: Any = None) -> dict[str, Any]:
    """Writes an ONNX file: integers of up to 8 bits as codes, other formats as floats.

    Args:
        mg: graph; it is not changed.
        path: path of the file; weights beyond 2 GB are stored next to it, and for decoders the
            files of `write_genai_files`.
        tokenizer: tokenizer of a decoder, or None.
    Returns: `path`, `notes`, and the result of `chop.export.onnx.export`.

    Raises:
        ConfigError: see `require_no_model`.
    """
    if tokenizer is not None:
        require_no_model(mg, path)
    written = write_in_float32(mg, path)
    files, notes = write_genai_files(mg, path, written["shapes"], tokenizer)
    written |= {"files": (*written["files"], *files), "notes": [*written["notes"], *notes]}
    return {"path": path, **written}


def write_in_float32(mg: MaseGraph, path: Path) -> dict[str, Any]:
    """Writes an ONNX file in float32, in which its engines compute.

    Returns: `notes` for users of the file, the `cause` of differences if activations are not
        rounded, and the result of `chop.export.onnx.export`.
    """
    mg, notes = in_float32(mg)
    written = export(mg, path, float_fallback=True, dynamic_axes=True)
    unrounded = written["unrounded"]
    if count := len(written["fallback"]) - len(unrounded):
        notes.append(f"{count} operands are stored as rounded floats: {LACKS}")
    if unrounded:
        notes.append(f"{enumerate_names(unrounded, MOST_LISTED)} are not rounded: {LACKS}")
    cause = f"inputs are not rounded: {LACKS}" if unrounded else ""
    return {"notes": notes, "cause": cause, **written}


def in_float32(mg: MaseGraph) -> tuple[MaseGraph, list[str]]:
    """Returns a graph in float32, copied if necessary, and notes on the conversion."""
    tensors = mg.model.state_dict().values()
    if all(x.dtype == torch.float32 for x in tensors if x.is_floating_point()):
        return mg, []
    mg = mg.copy()
    mg.model.float()
    return mg, ["the model was converted to float32"]


def read(path: Path) -> Runner:
    """Opens the file in onnxruntime."""
    return named(opened(path), path)


def named(run: Run, path: Path) -> Runner:
    """Wraps an engine with ordered outputs to return outputs by name."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    outputs = [each.name for each in graph.output]
    sizes = {each.name: each.type.tensor_type.shape.dim for each in graph.input}

    def answers(inputs: Mapping[str, Any]) -> dict[str, Tensor]:
        return dict(zip(outputs, run(named_tensors(inputs)), strict=True))

    return from_cache(answers, {name: [x.dim_value for x in dims] for name, dims in sizes.items()})


TARGET = Target(
    "onnx",
    "onnxruntime",
    "weights in any format, integers of up to 8 bits as codes, others as floats; inputs in integer "
    "or scale_integer with one scale, others are not rounded",
    "onnxruntime",
    "",
    ".onnx",
    write,
    read,
    weights=onnx_weights,
    weight_cause=FOLDED,
    needs=NEEDS,
    takes_cache=True,
)
