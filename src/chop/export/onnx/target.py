"""ONNX as a target: files that onnxruntime runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.errors import enumerate_names
from chop.export.graphs.cache import from_cache
from chop.export.graphs.flat import named_tensors
from chop.export.onnx.decoded_weights import FOLDED, onnx_weights
from chop.export.onnx.export import NEEDS, export
from chop.export.onnx.session import Run, opened
from chop.export.refusals import SHOWN
from chop.export.target import Runner, Target
from chop.ir.graph import MaseGraph

LACKS = "ONNX lacks their formats"


def write(mg: MaseGraph, path: Path, tokenizer: Any = None) -> dict[str, Any]:
    """Writes an ONNX file: integers of up to 8 bits as codes, other formats as floats.

    Args:
        mg: the graph; it stays as it is.
        path: the file; weights beyond 2 GB are beside it.
        tokenizer: is not part of such a file.
    Returns: `path`, `notes`, and what `chop.export.onnx.export` gives.
    """
    return {"path": path, **write_in_float32(mg, path)}


def write_in_float32(mg: MaseGraph, path: Path) -> dict[str, Any]:
    """Writes an ONNX file in float32, which its engines compute in.

    Returns: `notes` on what a user of the file would not expect, the `cause` of differences where
        activations are not rounded, and what `chop.export.onnx.export` gives.
    """
    mg, notes = in_float32(mg)
    found = export(mg, path, float_fallback=True, dynamic_axes=True)
    unrounded = found["unrounded"]
    if count := len(found["fallback"]) - len(unrounded):
        notes.append(f"{count} operands are rounded floats: {LACKS}")
    if unrounded:
        notes.append(f"{enumerate_names(unrounded, SHOWN)} are not rounded at all: {LACKS}")
    cause = f"inputs are not rounded: {LACKS}" if unrounded else ""
    return {"notes": notes, "cause": cause, **found}


def in_float32(mg: MaseGraph) -> tuple[MaseGraph, list[str]]:
    """A graph, or its copy in float32 where it is in another dtype; and notes that say so."""
    tensors = mg.model.state_dict().values()
    if all(x.dtype == torch.float32 for x in tensors if x.is_floating_point()):
        return mg, []
    mg = mg.copy()
    mg.model.float()
    return mg, ["the model's dtype became float32"]


def read(path: Path) -> Runner:
    """The file as onnxruntime runs it."""
    return named(opened(path), path)


def named(run: Run, path: Path) -> Runner:
    """An engine that gives outputs in the file's order, as one that gives them by name."""
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
    "any in weights, integers of up to 8 bits as codes, others as floats; integer, scale_integer "
    "with one scale in inputs, others are not rounded",
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
