"""QONNX target: ONNX files with nodes for arbitrary bit widths, which hls4ml converts to circuits.

FINN reads such files too, but has not been tested with those of chop.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.base.installed import require
from chop.errors import GuardError
from chop.export.graphs.flat import FlatGraph, map_tensors, named_tensors
from chop.export.onnx.check import check
from chop.export.onnx.export import NEEDS, compute_outputs
from chop.export.onnx.files import write_files
from chop.export.onnx.plain import in_plain_operators
from chop.export.onnx.quant import WHERE, quant_graph, refusals
from chop.export.onnx.target import in_float32
from chop.export.onnx.write import build_proto
from chop.export.target import Runner, Target
from chop.ir.graph import MaseGraph
from chop.ir.propagate import example_inputs

ALIKE = 0.05
"""Allowed difference of the first row when computed separately, relative to the largest output."""


def write(mg: MaseGraph, path: Path, tokenizer: Any = None) -> dict[str, Any]:
    """Writes a QONNX file, and verifies it first if onnxruntime is installed.

    Sizes are fixed, as its readers require. The batch is one row if rows are independent.

    Args:
        mg: graph; it is not changed.
        path: path of the file; weights beyond 2 GB are stored next to it.
        tokenizer: ignored, because such files have none.
    Returns: `path`, `files`, `notes`, and names of `inputs` and `outputs`.

    Raises:
        ConfigError: if QONNX lacks formats, which are listed by module.
        GraphError: if torch's exporter does not support an operator.
        UnavailableError: if onnx or onnxscript is not installed.
        VerificationError: if onnxruntime does not run the file, or computes other results.
    """
    require(WHERE, *NEEDS, extra="")
    mg, notes = in_float32(mg)
    example, answer = _example_and_answer(mg)
    flat = FlatGraph(quant_graph(mg), example, WHERE)
    proto = build_proto(flat, None)

    def check_plain(weights: Path | None) -> None:
        plain, smooth = (in_plain_operators(proto, rounds) for rounds in (True, False))
        check(plain, smooth, flat, flat.tensors(example), flat.answers(answer), weights)

    files = write_files(proto, path, check_plain)
    inputs, outputs = ([x.name for x in ends] for ends in (proto.graph.input, proto.graph.output))
    return {"path": path, "files": files, "notes": notes, "inputs": inputs, "outputs": outputs}


def _example_and_answer(mg: MaseGraph) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Returns example inputs and outputs: the first row, if it has the same outputs separately."""
    example = example_inputs(mg.model)
    answer = compute_outputs(mg, example)
    if all(x.dim() for x in named_tensors(example).values()):
        row = map_tensors(lambda x: x[:1], example)
        with suppress(GuardError):
            alone = compute_outputs(mg, row)
            if _are_alike(alone, answer):
                return row, alone
    return example, answer


def _are_alike(alone: Mapping[str, Tensor], whole: Mapping[str, Tensor]) -> bool:
    """Returns True if outputs of a single row equal those of the first row, up to rounding."""
    for name, x in alone.items():
        expected = whole[name][:1] if whole[name].dim() else whole[name]
        if x.shape != expected.shape:
            return False
        apart = (x.double() - expected.double()).abs()
        if x.numel() and apart.max() > ALIKE * expected.double().abs().max():
            return False
    return True


def read(path: Path) -> Runner:
    """Runs the file with QONNX's own executor, node by node, in batches of its own size."""
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx

    model = ModelWrapper(str(path))
    shapes = {each.name: model.get_tensor_shape(each.name) for each in model.graph.input}

    def run(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        outputs = execute_onnx(model, {name: x.numpy() for name, x in tensors.items()})
        return {name: torch.from_numpy(x) for name, x in outputs.items()}

    def answers(given: Mapping[str, Any]) -> dict[str, Tensor]:
        tensors = {name: named_tensors(given)[name] for name in shapes}
        if all([*x.shape] == shapes[name] for name, x in tensors.items()):
            return run(tensors)
        rows = zip(*(x.split(shapes[name][0]) for name, x in tensors.items()), strict=True)
        results = [run(dict(zip(tensors, row, strict=True))) for row in rows]
        return {name: torch.cat([each[name] for each in results]) for name in results[0]}

    return answers


TARGET = Target(
    WHERE,
    "hls4ml, FINN",
    "integer, scale_integer, binary, ternary, with static scales",
    "qonnx",
    "qonnx",
    ".onnx",
    write,
    read,
    refusals,
    (
        *(f"scale_integer:width={bits}" for bits in range(2, 9)),
        *(f"scale_integer:width={bits}:granularity=channel" for bits in range(2, 9)),
        *("binary", "ternary"),
    ),
    needs=NEEDS,
    stem="qonnx",
    is_timed=False,
)
