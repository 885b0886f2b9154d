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


def target(name: str) -> Target:
    """The target of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in TARGETS:
        raise ConfigError(f"to: unknown target '{name}': {did_you_mean(name, TARGETS)}")
    found: Target = import_module(TARGETS[name]).TARGET
    return found
