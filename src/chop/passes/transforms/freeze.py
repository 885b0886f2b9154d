"""Freezing of a quantized graph for inference, with optional compilation or onnxruntime."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.passes.base import graph_pass
from chop.quantization.freezing import freeze_layers, multiplies_codes, multiplies_integers


@dataclass(frozen=True)
class FreezeConfig:
    """Settings of `freeze_transform_pass`.

    Attributes:
        compile: True also returns the model compiled by `torch.compile`; its first call takes
            seconds to minutes and needs a C++ compiler. "aot" compiles now and writes a package
            that torch and C++ load without chop, on processors with the same instructions; inputs
            then need the format `integer`, rounded to nearest, or float.
        path: output package for "aot"; a missing suffix `.pt2` is added.
        engine: "onnxruntime" returns a module that computes the graph there, which is faster for
            small layers and needs no compiler; it excludes `compile`.
    """

    compile: bool | Literal["aot"] = False
    path: Path | None = None
    engine: Literal["torch", "onnxruntime"] = "torch"

    def __post_init__(self) -> None:
        if (self.compile == "aot") != (self.path is not None):
            raise ConfigError(
                'freeze_transform_pass: compile = "aot" needs a path, and only it does; '
                f"got compile = {self.compile!r} and path = {self.path!r}."
            )
        if self.compile and self.engine != "torch":
            raise ConfigError(
                f"freeze_transform_pass: torch compiles for itself, got compile = {self.compile!r} "
                f"with engine = {self.engine!r}; choose one of them."
            )


@graph_pass(config=FreezeConfig, takes_packed=True)
def freeze_transform_pass(mg: MaseGraph, config: FreezeConfig) -> dict[str, Any]:
    """Rounds the weights of quantized layers once, for graphs that are only evaluated.

    The result is in evaluation mode and computes the same. Layers that round only parameters become
    torch layers; others still round inputs or results. Packed linear layers stay packed if products
    of codes are faster: with at least 65,536 weights, or 8-bit integer weights and inputs; when
    compiled, only if both hold, and never ahead of time. The parameters of replaced layers get no
    gradients, and learned scales become part of the formats. Quantized function calls and operators
    with a custom forward do not change.

    Frozen weights are floats; to reduce the size, pack the graph instead. When compiled, rounding
    of inputs to `integer` is fused with the surrounding operations if no gradient is needed.

    Returns:
        frozen: paths of the layers that still round inputs or results.
        plain: paths of layers that became torch layers.
        packed: paths of layers that stay packed.
        kept: paths of other quantized layers, with random rounding, renormalized table rows, or a
            custom forward.
        compiled: compiled replacement of `mg.model`, or an `OnnxRuntimeModule`; None without
            `compile` and `engine`. A package takes input tensors in the order of `inputs` and
            returns a list of output tensors.
        path: path of the package; this and all entries below only with "aot".
        inputs: names of its inputs.
        outputs: names of its outputs.
        varying: axes of each input that may differ in size from the example; a package does not
            check other axes.
        unchecked: conditions of the graph on sizes that the package does not test.

    Raises:
        ConfigError: if nothing is quantized, a weight format needs calibration, learned scales
            need a first batch, or onnxruntime cannot round an input to its format.
        GraphError: if torch cannot compile the graph ahead of time or write it as ONNX, or a part
            of it needs chop.
        UnavailableError: if onnxruntime cannot be imported.
        VerificationError: if the results of the package or of onnxruntime differ.

    Example::

        frozen, info = freeze_transform_pass(mg, {"compile": True})
        y = info["compiled"](x)
        frozen, info = freeze_transform_pass(mg, {"engine": "onnxruntime"})
        y = info["compiled"](x)
        freeze_transform_pass(mg, {"compile": "aot", "path": "model.pt2"})
        # Elsewhere, with torch alone: torch._inductor.aoti_load_package("model.pt2")(x)
    """
    mg.model.eval()
    in_torch = multiplies_integers if config.compile else multiplies_codes
    compiled: Any = None
    if config.engine == "onnxruntime":
        from chop.export.onnx.module import compute_in_onnxruntime

        # Before freezing: files have codes and scales, which frozen layers lack.
        compiled = compute_in_onnxruntime(mg)
    paths: dict[str, Any] = freeze_layers(mg, None if config.path else in_torch)
    if config.path is not None:
        # Registers operators with torch, which takes as long as importing all other engines.
        from chop.export import pt2

        return {**paths, **pt2.write(mg, config.path, freeze_transform_pass.__name__)}
    if config.compile:
        from chop.quantization.compilation import compiled_model

        compiled = compiled_model(mg.model)
    return {**paths, "compiled": compiled}
