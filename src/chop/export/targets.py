"""Table of targets: the one place that names them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from chop.errors import ConfigError, did_you_mean
from chop.export.target import Target

TARGETS: Mapping[str, str] = {
    "onnx": "chop.export.onnx.target",
    "openvino": "chop.export.openvino",
    "pt2": "chop.export.pt2",
    "compressed-tensors": "chop.export.compressed_tensors",
    "gptq": "chop.export.gptq",
    "qonnx": "chop.export.qonnx",
    "gguf": "chop.export.gguf",
}
"""The module of each target, by the name that `--to` takes; it has the `TARGET`."""

REFUSED: Mapping[str, str] = {
    "awq": "chop reads folders of AWQ and writes none: gptq and compressed-tensors hold the same "
    "integers of 4 bits in groups",
    "executorch": "ExecuTorch 1.5 asks for torchao 0.18 and for one version each of mpmath and "
    "coremltools, and was not tried: pt2 is a package that C++ runs without chop",
    "tensorrt": "TensorRT reads files of onnx, and was not tried with those of chop",
    "vllm": "vLLM reads folders of compressed-tensors and gptq",
    "sglang": "SGLang reads folders of compressed-tensors and gptq",
    "llama.cpp": "llama.cpp reads files of gguf",
}
"""What is no target, by the name that a user may give: why, and which target to take."""


def target(name: str) -> Target:
    """The target of that name.

    Raises:
        ConfigError: there is none.
    """
    if name in REFUSED:
        raise ConfigError(f"to: no target '{name}': {REFUSED[name]}.")
    if name not in TARGETS:
        raise ConfigError(f"to: unknown target '{name}': {did_you_mean(name, TARGETS)}")
    found: Target = import_module(TARGETS[name]).TARGET
    return found
