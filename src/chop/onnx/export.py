"""ONNX export of a quantized graph."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from chop.errors import UnavailableError
from chop.ir.graph import MaseGraph
from chop.onnx.qdq import qdq_graph
from chop.onnx.write import write

NEEDS = ("onnx", "onnxscript")


def check_onnx_is_installed() -> None:
    """Raises UnavailableError where onnx or onnxscript are not installed."""
    absent = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if absent:
        raise UnavailableError(f"ONNX needs {' and '.join(absent)}: pip install 'mase-chop[onnx]'.")


def export(mg: MaseGraph, path: Path, float_fallback: bool, dynamic_axes: bool) -> dict[str, Any]:
    """Writes a graph as an ONNX file.

    Args:
        mg: the graph; it stays as it is.
        path: the file.
        float_fallback: exports operands as floats where ONNX lacks their format.
        dynamic_axes: batches and sequences may have other sizes than the example inputs.
    Returns: names of `inputs` and `outputs`; `quantized`, paths of the modules in integers;
        `fallback`, operands exported as floats.

    Raises:
        ConfigError: a format has no 8-bit form in ONNX, or waits for data.
        GraphError: torch's exporter lacks the ONNX of an operator.
        UnavailableError: onnx or onnxscript are not installed.
    """
    check_onnx_is_installed()
    qdq = qdq_graph(mg, float_fallback)
    named = write(qdq.mg, path, dynamic_axes)
    return {**named, "quantized": qdq.quantized, "fallback": qdq.fallback}
