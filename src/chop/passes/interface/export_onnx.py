"""ONNX export, with 8-bit formats as pairs of QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.export.onnx.session import SESSION_CONFIG
from chop.ir.graph import MaseGraph
from chop.passes.base import graph_pass


@dataclass(frozen=True)
class ExportOnnxConfig:
    """Settings of `export_onnx_interface_pass`.

    Attributes:
        path: output file; missing folders are created, and a missing suffix `.onnx` is added.
        float_fallback: exports operands in formats that ONNX lacks as floats: weights with their
            rounded values, activations without rounding. Otherwise they are an error.
        dynamic_axes: allows other batch sizes and sequence lengths than those of the example
            inputs, if the graph was captured for them. Size conditions that the file cannot test,
            such as a maximum length, are logged.
        cache: adds the key-value cache of a decoder to inputs and outputs, if its graph has one and
            axes are dynamic.
    """

    path: Path
    float_fallback: bool = False
    dynamic_axes: bool = True
    cache: bool = True


@graph_pass(config=ExportOnnxConfig)
def export_onnx_interface_pass(mg: MaseGraph, config: ExportOnnxConfig) -> dict[str, Any]:
    """Writes the graph as an ONNX file that runtimes can compute in 8-bit integers.

    Formats `integer` and `scale_integer` of at most 8 bits are preserved: weights become int8 codes
    with a scale per tensor or channel, and each quantized activation a pair of QuantizeLinear and
    DequantizeLinear, uint8 with zero point 128 if it is signed. Float operands stay float, and
    biases are floats with their rounded values. A loss is omitted. Packed, pruned and learned
    layers are exported as the function that they compute.

    Weight matrices in any integer format of at most 8 bits are stored as codes with scales and zero
    points per group along rows. Linear layers of up to 4 bits become MatMulNBits of onnxruntime,
    which multiplies floats by codes, in blocks of 16 to 128 columns. Other group sizes and wider
    formats become int8 codes that are decoded when the file is loaded. Embeddings decode the rows
    that they look up. This also applies to `integer` and `scale_integer` weights of linear layers
    with float inputs.

    Outputs have the names of the model's keys and fields, `output` for a single tensor, and
    `output.0`, `output.1` for the parts of a tuple. Nested inputs and outputs have keys and indices
    after a dot: `batch.mask`, `hidden_states.0`. None and text are omitted.

    A decoder whose graph has a cache becomes a file for generation. Besides `input_ids`, (batch,
    sequence), `attention_mask`, (batch, past + sequence), and `position_ids`, it takes the keys and
    values of earlier tokens, (batch, heads, past, size), as `past_key_values.0.key` and
    `past_key_values.0.value`, and returns those of all tokens as `present.0.key` and
    `present.0.value`. A text starts with a past of length 0. Layers with a sliding window mask
    tokens outside of it; their keys and values also cover all tokens.

    If onnxruntime is installed, it runs the file on the example inputs before the file gets its
    final name. A file that does not run, or that differs from the graph by more than rounding, is
    refused, since torch's exporter drops some arguments of operators.

    A format with a data-dependent scale measures it in each run. onnxruntime computes in integers
    only with fixed scales. Use the entries of `session_config` to compute exactly like the graph.
    Without them, onnxruntime may skip rounding activations of layers with integer weights, and on
    x86 without VNNI it accumulates pairs of 8-bit products in 16 bits, which can overflow.

    ONNX rounds to nearest, ties to even, like the formats, but divides by the scale in float32. A
    rounded value near a boundary may therefore differ by one step. It may also differ at the
    negative end of 8-bit `scale_integer`, which is symmetric: codes reach -128 instead of -127.
    Runtimes require the bias of a convolution to be a multiple of the product of its two scales,
    which adds an error of at most half of that product to each result.

    Returns:
        path: the file.
        files: the file, and for weights beyond 2 GB a second one, `.onnx.data`.
        inputs: names of its inputs.
        outputs: names of its outputs.
        shapes: shapes of inputs and outputs by name; 0 for dynamic axes.
        quantized: paths of the modules in integers.
        fallback: operands exported as floats.
        unrounded: activations among them, which are not rounded.
        unchecked: conditions of the graph on sizes that the file does not test.
        size_bytes: size of the files.
        session_config: entries for `onnxruntime.SessionOptions.add_session_config_entry`.

    Raises:
        ConfigError: if a format has no integer form in ONNX, or needs calibration.
        GraphError: if torch's exporter does not support an operator.
        UnavailableError: if onnx or onnxscript are not installed.
        VerificationError: if onnxruntime cannot run the file, or its results differ.

    Source: the ONNX operators QuantizeLinear and DequantizeLinear, version 13; of the domain
    com.microsoft MatMulNBits and GatherBlockQuantized, version 1.
    """
    # Registers operators with torch, which takes as long as importing all other engines.
    from chop.export.onnx.export import export

    path = config.path
    if path.suffix != ".onnx":
        path = path.with_name(path.name + ".onnx")
    exported = export(mg, path, config.float_fallback, config.dynamic_axes, config.cache)
    size = sum(file.stat().st_size for file in exported["files"])
    return {"path": path, **exported, "size_bytes": size, "session_config": dict(SESSION_CONFIG)}
