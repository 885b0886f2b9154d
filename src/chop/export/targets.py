"""Table of export targets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from chop.base.plugins import Registry
from chop.errors import ConfigError, did_you_mean
from chop.export.target import Target

TARGETS: Registry[Target] = Registry(
    "targets",
    {
        "onnx": "chop.export.onnx.target:TARGET",
        "openvino": "chop.export.openvino:TARGET",
        "pt2": "chop.export.pt2:TARGET",
        "compressed-tensors": "chop.export.compressed_tensors.target:TARGET",
        "modelopt": "chop.export.modelopt:TARGET",
        "gptq": "chop.export.gptq.target:TARGET",
        "qonnx": "chop.export.qonnx.target:TARGET",
        "gguf": "chop.export.gguf.target:TARGET",
    },
    kind=Target,
    own_name=lambda target: target.name,
)
"""Targets of chop and of other packages, by the name for `--to`."""

REFUSED: Mapping[str, str] = {
    "awq": "chop reads AWQ folders but does not write them; use gptq or compressed-tensors, which "
    "store the same 4-bit integers in groups",
    "executorch": "ExecuTorch 1.5 pins torchao 0.18, mpmath and coremltools, and was not tested; "
    "use pt2, a package that C++ runs without chop",
    "tensorrt-llm": "for TensorRT-LLM use modelopt",
    "tensorrt": "TensorRT was not tested; it reads files of the target onnx",
    "vllm": "for vLLM use compressed-tensors, modelopt or gptq",
    "sglang": "for SGLang use compressed-tensors, modelopt or gptq",
    "llama.cpp": "for llama.cpp use gguf",
    "ollama": "for ollama use gguf",
    "onnxruntime": "for onnxruntime use onnx",
    "onnxruntime-genai": "for onnxruntime-genai use onnx",
    "openvino-genai": "for openvino-genai use openvino",
}
"""Names of engines and formats that are not targets, with an alternative."""


def target(name: str) -> Target:
    """Returns the target of a name.

    Raises:
        ConfigError: if there is no such target.
    """
    if name in REFUSED:
        raise ConfigError(f"to: no target '{name}': {REFUSED[name]}.")
    kind = Path(name).suffix[1:].lower()
    if kind in TARGETS and name not in TARGETS:
        raise ConfigError(
            f"to: '{name}' names a file: pass the target '{kind}', and --out for the folder of "
            "the files."
        )
    if name not in TARGETS:
        raise ConfigError(f"to: unknown target '{name}': {did_you_mean(name, TARGETS)}")
    return TARGETS[name]
