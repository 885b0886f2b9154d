"""Names of MASE without an implementation, which can be imported and raise an error when called."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

from chop.errors import NotBuiltError

VIVADO = "Vivado projects are not supported; read the rtl/*.sv of chop emit with read_verilog -sv."
DISTRIBUTED = (
    "pipeline parallelism is not supported yet; autosharding_analysis_pass shards tensors."
)
TENSORRT = (
    "TensorRT engines are not supported yet; export_onnx_interface_pass writes a file for TensorRT."
)
SPIKING = (
    "spiking networks are not supported yet; quantize_transform_pass has one-bit inputs, 'binary'."
)
ATTENTION = (
    "attention is not replaced yet; fuse_attention_transform_pass fuses it into one call with the "
    "same results."
)
RUNTIME = (
    "passes do not measure speed yet; 'chop bench model' compares a model with its float original."
)
REASONS: dict[str, str] = {
    VIVADO: "emit_vivado_project_transform_pass",
    "circuit metadata need no patch; add_hardware_metadata_analysis_pass creates them.": (
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
    "LogicNets are not supported yet; quantize_transform_pass has their formats, 'integer'.": (
        "logicnets_fusion_transform_pass"
    ),
    "runtimes are not wrapped yet; export_onnx_interface_pass writes a file for onnxruntime.": (
        "onnx_runtime_interface_pass onnx_annotate_transform_pass"
    ),
    "passes and actions do not train yet; use chop.tools.get_trainer or chop.train.fit.": (
        "training_base_pass train test"
    ),
    "actions do not run passes yet; chop.pipelines.Pipeline runs the passes of a TOML file.": (
        "transform"
    ),
    "hardware formats are not separate; chop emit takes mxint, see mxint_quantizer.": (
        "mxint_hardware"
    ),
}
NOT_BUILT: dict[str, str] = {
    name: reason for reason, names in REASONS.items() for name in names.split()
}
"""Name -> missing feature and its alternative."""


def missing_passes() -> dict[str, Callable[..., NoReturn]]:
    """Returns the missing graph passes by name."""
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
