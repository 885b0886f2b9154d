"""Writes a graph as ONNX, with 8-bit formats as pairs of QuantizeLinear and DequantizeLinear."""

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
        path: the file to write; folders are made, and a missing suffix `.onnx` is added.
        float_fallback: operands whose formats ONNX lacks are exported as floats: weights with
            their rounded values, activations not rounded. Otherwise they are an error.
        dynamic_axes: batches and sequences may have other sizes than the example inputs, where
            the graph was captured for others. A condition on sizes that the file cannot test, such
            as a largest length, is logged.
        cache: the key-value cache of a decoder is among the inputs and outputs, where its graph
            has one and axes are dynamic.
    """

    path: Path
    float_fallback: bool = False
    dynamic_axes: bool = True
    cache: bool = True


@graph_pass(config=ExportOnnxConfig)
def export_onnx_interface_pass(mg: MaseGraph, config: ExportOnnxConfig) -> dict[str, Any]:
    """Writes the graph as an ONNX file that runtimes can compute in 8-bit integers.

    Formats `integer` and `scale_integer` of at most 8 bits are written as they are: weights as
    int8 codes with their scales, a scale per tensor or channel; each quantized activation as a
    pair of QuantizeLinear and DequantizeLinear, uint8 with zero point 128 where it is signed. What
    is float stays float, and biases are floats with their rounded values. A loss is left out.
    Packed, pruned and learned layers are written as what they compute.

    Matrices of weights are codes in any format of integers of at most 8 bits, with scales and zero
    points of groups that lie along rows. Linear layers of up to 4 bits are MatMulNBits of
    onnxruntime, which multiplies floats by codes, in blocks of 16 to 128 columns; groups of other
    sizes, and more bits, are int8 codes that are decoded as the file is opened. Embeddings decode
    the rows that they look up. Where a linear layer has float inputs, `integer` and
    `scale_integer` are written so, too.

    Outputs have the names of the model's: keys and fields, `output` for a single tensor, and
    `output.0`, `output.1` for the parts of a tuple. Where inputs or outputs are nested, keys and
    indices stand behind a dot: `batch.mask`, `hidden_states.0`. None and text are left out.

    A decoder whose graph has a cache becomes a file that generates: beside `input_ids`, (batch,
    sequence), `attention_mask`, (batch, past + sequence), and `position_ids` it takes the keys and
    values of the tokens before, (batch, heads, past, size), as `past_key_values.0.key` and
    `past_key_values.0.value`, and gives those of all tokens as `present.0.key` and
    `present.0.value`. A text begins with a past of length 0. Layers with a sliding window hide
    what is outside of it; their keys and values are those of all tokens, too.

    Where onnxruntime is installed it runs the file on the example inputs before the file gets its
    name. A file that does not run, or that differs from the graph by more than rounding explains,
    is refused: torch's exporter drops some arguments of operators.

    A format whose scale follows the data measures it at each run. onnxruntime computes in integers
    only with fixed scales. A session computes what the graph does with the entries of
    `session_config`; by default it may round the activations of layers with integer weights alone,
    and on x86 without VNNI it adds pairs of 8-bit products in 16 bits, which are too few.

    ONNX rounds to nearest, ties to even, as the formats do, but divides by the scale in float32:
    a rounded value may differ by one step of its format where it lies next to a boundary. So it
    may at the negative end of 8-bit `scale_integer`, which is symmetric: codes reach -128, not
    -127. Runtimes want the bias of a convolution in multiples of the product of its two scales;
    that adds at most half of that product to each result.

    Returns:
        path: the file.
        files: it, and the one of weights beyond 2 GB, which is beside it: `.onnx.data`.
        inputs: names of its inputs.
        outputs: names of its outputs.
        quantized: paths of the modules in integers.
        fallback: operands exported as floats.
        unrounded: those of them that are activations, which nothing rounds.
        unchecked: conditions of the graph on sizes that the file does not test.
        size_bytes: size of the files.
        session_config: entries for `onnxruntime.SessionOptions.add_session_config_entry`.

    Raises:
        ConfigError: a format has no form of integers in ONNX, or waits for data.
        GraphError: torch's exporter lacks the ONNX of an operator.
        UnavailableError: onnx or onnxscript are not installed.
        VerificationError: onnxruntime does not run the file, or computes something else.

    Source: the ONNX operators QuantizeLinear and DequantizeLinear, version 13; of the domain
    com.microsoft MatMulNBits and GatherBlockQuantized, version 1.
    """
    # Registers operators with torch, which takes as long as importing all other engines.
    from chop.export.onnx.export import export

    path = config.path
    if path.suffix != ".onnx":
        path = path.with_name(path.name + ".onnx")
    found = export(mg, path, config.float_fallback, config.dynamic_axes, config.cache)
    size = sum(file.stat().st_size for file in found["files"])
    return {"path": path, **found, "size_bytes": size, "session_config": dict(SESSION_CONFIG)}
