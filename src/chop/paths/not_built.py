"""Names of MASE whose parts are missing: each can be imported, and says so when it is called."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

from chop.errors import NotBuiltError

VIVADO = "no Vivado project is written; its read_verilog -sv takes the rtl/*.sv of chop emit."
DISTRIBUTED = (
    "no graph is cut into stages for devices yet; autosharding_analysis_pass cuts its tensors."
)
TENSORRT = (
    "no TensorRT engine is built yet; export_onnx_interface_pass writes a file that TensorRT reads."
)
SPIKING = (
    "no spiking networks are built yet; quantize_transform_pass to 'binary' gives one-bit inputs."
)
ATTENTION = (
    "no attention is replaced yet; fuse_attention_transform_pass makes it one fused call, with the "
    "same numbers."
)
RUNTIME = (
    "no pass measures speed yet; the command 'chop bench model' compares a model with its float "
    "twin."
)
REASONS: dict[str, str] = {
    VIVADO: "emit_vivado_project_transform_pass",
    "no metadata of a circuit has to be patched; add_hardware_metadata_analysis_pass makes it.": (
        "patch_metadata_transform_pass"
    ),
    DISTRIBUTED: "partition_to_multi_device_transform_pass",
    TENSORRT: """
        tensorrt_calibrate_transform_pass tensorrt_fake_quantize_transform_pass
        tensorrt_fine_tune_transform_pass tensorrt_engine_interface_pass
    """,
    SPIKING: "ann2snn_transform_pass ann2snn_module_transform_pass",
    ATTENTION: "attention_transform_pass",
    RUNTIME: "runtime_analysis_pass",
    "no LogicNets are built yet; quantize_transform_pass to 'integer' has their formats.": (
        "logicnets_fusion_transform_pass"
    ),
    "no runtime is wrapped yet; export_onnx_interface_pass writes a file that onnxruntime takes.": (
        "onnx_runtime_interface_pass onnx_annotate_transform_pass"
    ),
    "no pass or action trains yet; chop.tools.get_trainer and chop.train.fit take mg.model.": (
        "training_base_pass train test"
    ),
    "no action runs passes yet; chop.pipelines.Pipeline runs those that a TOML file lists.": (
        "transform"
    ),
    "no format for circuits alone yet; chop emit makes those of mxint; mxint_quantizer is it.": (
        "mxint_hardware"
    ),
}
NOT_BUILT: dict[str, str] = {
    name: reason for reason, names in REASONS.items() for name in names.split()
}
"""What is missing, and what to use meanwhile."""


def missing_passes() -> dict[str, Callable[..., NoReturn]]:
    """The passes on graphs."""
    names = (n for n in NOT_BUILT if n.endswith("_pass"))
    return {name: _refusal(name) for name in names}


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name not in NOT_BUILT:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return _refusal(name)


@cache
def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotBuiltError(f"{name}: {NOT_BUILT[name]}")

    refuse.__name__ = name
    return refuse
