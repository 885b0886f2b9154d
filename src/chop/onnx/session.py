"""Sessions of onnxruntime that compute what a file says."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

SESSION_CONFIG = {
    "session.qdq_matmulnbits_accuracy_level": "1",
    "session.x64quantprecision": "1",
}
"""Entries without which onnxruntime rounds more than the file says."""
FATAL = 4


def is_installed() -> bool:
    """Whether onnxruntime can be imported."""
    return importlib.util.find_spec("onnxruntime") is not None


def run(proto: Any, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """Outputs of an `onnx.ModelProto` on the CPU; inputs that it does not read are left out."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), FATAL
    for name, value in SESSION_CONFIG.items():
        options.add_session_config_entry(name, value)
    content, providers = proto.SerializeToString(), ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(content, options, providers)
    given = {each.name: inputs[each.name].numpy() for each in session.get_inputs()}
    return [torch.as_tensor(x) for x in session.run(None, given)]
