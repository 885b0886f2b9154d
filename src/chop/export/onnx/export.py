"""ONNX export of a quantized graph."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.base.installed import require
from chop.captured.state.preserve_state import preserve_state
from chop.errors import ChopError, GraphError, GuardError, first_line, shorten
from chop.export.graphs.axes import Conditions, symbolic_axes
from chop.export.graphs.cache import (
    cache_axes,
    cached_examples,
    flatten_cache,
    has_cache,
    with_past,
    with_present,
)
from chop.export.graphs.flat import WHERE, FlatGraph, map_tensors, named_outputs, named_tensors
from chop.export.onnx.check import check, without_roundings
from chop.export.onnx.files import write_files
from chop.export.onnx.qdq import qdq_graph
from chop.export.onnx.write import build_proto
from chop.ir.graph import MaseGraph
from chop.ir.propagate import example_inputs

log = logging.getLogger(__name__)

NEEDS = ("onnx", "onnxscript")
Answered = tuple[dict[str, Any], dict[str, Tensor]]
"""Inputs by argument name, and the output tensors of the graph by name."""
UNCHECKED = (
    "%s: the graph was captured for %s. The file accepts other sizes too, but its outputs may be "
    "wrong for them. In Python, dynamic_axes=False makes the file reject them."
)


def export(
    mg: MaseGraph, path: Path, float_fallback: bool, dynamic_axes: bool, cache: bool = True
) -> dict[str, Any]:
    """Writes a graph as an ONNX file, and verifies it first if onnxruntime is installed.

    Args:
        mg: graph; it is not changed.
        path: path of the file; weights beyond 2 GB are stored next to it.
        float_fallback: exports operands as floats if ONNX lacks their format.
        dynamic_axes: allows other batch sizes and sequence lengths than the example's.
        cache: makes a decoder's key-value cache inputs and outputs if axes are dynamic.
    Returns: written `files`; names of `inputs` and `outputs`; `shapes` of both by name, with 0 for
        dynamic axes; `quantized`, paths of the modules in
        integers; `fallback`, operands exported as floats; `unrounded`, fallback operands that are
        not rounded; `unchecked`, the graph's guards on sizes that the file does not test.

    Raises:
        ConfigError: if ONNX has no integers for a format, or if a format is not fitted.
        GraphError: if torch's exporter does not support an operator.
        UnavailableError: if onnx or onnxscript is not installed.
        VerificationError: if onnxruntime does not run the file, or computes other results.
    """
    require("ONNX", *NEEDS, extra="")
    is_cached = cache and dynamic_axes and has_cache(mg)
    axes = cache_axes(mg) if is_cached else {}
    qdq = qdq_graph(mg, float_fallback)
    if is_cached:
        # Unless formats became floats, the graph itself gives the same answers with a cache.
        answers = _cached_answers(qdq.mg if qdq.fallback else mg)
        flatten_cache(qdq.mg, WHERE)
    else:
        answers = examples_and_answers(mg, dynamic_axes)
    flat = FlatGraph(qdq.mg, answers[0][0])
    conditions = Conditions(mg.model.record.guards, answers[0][0], axes)
    proto = build_proto(flat, conditions.varying() if dynamic_axes else None, axes)
    unchecked = conditions.restricting(symbolic_axes(proto))
    if unchecked:
        log.warning(UNCHECKED, WHERE, " and ".join(unchecked))

    def check_all(weights: Path | None) -> None:
        smooth = without_roundings(proto)
        for example, answer in answers:
            whole = flat.answers(answer) if is_cached or not qdq.fallback else None
            check(proto, smooth, flat, flat.tensors(example), whole, weights)

    files = write_files(proto, path, check_all)
    ends = (*proto.graph.input, *proto.graph.output)
    return {
        "files": files,
        "shapes": {x.name: [dim.dim_value for dim in x.type.tensor_type.shape.dim] for x in ends},
        "inputs": [each.name for each in proto.graph.input],
        "outputs": [each.name for each in proto.graph.output],
        "quantized": qdq.quantized,
        "fallback": qdq.fallback,
        "unrounded": qdq.unrounded,
        "unchecked": unchecked,
    }


def examples_and_answers(mg: MaseGraph, dynamic: bool) -> list[Answered]:
    """Returns examples with the graph's outputs; the first example is exported.

    A batch of one is repeated to two if the graph accepts it, because the exporter treats an axis
    of size one as a constant.

    Args:
        mg: the graph.
        dynamic: True if the batch size may vary.
    """
    example = example_inputs(mg.model)
    examples = [(example, compute_outputs(mg, example))]
    leaves = named_tensors(example).values()
    if dynamic and all(x.dim() and len(x) == 1 for x in leaves):
        twice = map_tensors(lambda x: torch.cat([x, x]), example)
        with suppress(GuardError):
            examples.insert(0, (twice, compute_outputs(mg, twice)))
    return examples


def _cached_answers(mg: MaseGraph) -> list[Answered]:
    """Returns `examples_and_answers` for a graph that runs on transformers caches."""
    examples = []
    for inputs in cached_examples(mg):
        taken = with_past(inputs)  # before the graph adds to the cache
        with preserve_state(mg.model), torch.no_grad():
            answer = mg.model.eval()(**inputs)
        examples.append((taken, named_outputs(with_present(answer))))
    return examples


def compute_outputs(mg: MaseGraph, example: dict[str, Any]) -> dict[str, Tensor]:
    """Returns the outputs of a graph by name, in eval mode, without changing the graph.

    Raises:
        GraphError: if the graph fails on these inputs, which may not fit one another.
    """
    with preserve_state(mg.model), torch.no_grad():
        try:
            return named_outputs(mg.model.eval()(**example))
        except ChopError:
            raise
        except (RuntimeError, IndexError, TypeError) as error:  # torch's own
            raise GraphError(
                f"{WHERE}: the graph fails on random inputs with the shapes and ranges of the "
                f"example ({shorten(first_line(error), 200)}). Capture it with an example in which "
                "integers and masks can have any value in their range."
            ) from error
