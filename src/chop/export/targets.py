"""Table of targets: the one place that names them."""

from __future__ import annotations

from collections.abc import Mapping

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
        "gptq": "chop.export.gptq.target:TARGET",
        "qonnx": "chop.export.qonnx:TARGET",
        "gguf": "chop.export.gguf.target:TARGET",
    },
    kind=Target,
    own_name=lambda target: target.name,
)
"""Targets by the name that `--to` takes: those of chop, and those of other packages."""

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
    return TARGETS[name]
