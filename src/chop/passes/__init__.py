"""Graph passes, one per file. `PASSES` contains those with settings."""

import importlib
import sys

from chop.base.elsewhere import explain_missing
from chop.passes import module
from chop.passes.analysis.add_common_metadata import add_common_metadata_analysis_pass
from chop.passes.analysis.add_hardware_metadata import add_hardware_metadata_analysis_pass
from chop.passes.analysis.add_natural_sparsity_metadata import (
    add_natural_sparsity_metadata_analysis_pass,
)
from chop.passes.analysis.add_pruning_metadata import add_pruning_metadata_analysis_pass
from chop.passes.analysis.add_software_metadata import add_software_metadata_analysis_pass
from chop.passes.analysis.autosharding import autosharding_analysis_pass
from chop.passes.analysis.calculate_avg_bits import calculate_avg_bits_mg_analysis_pass
from chop.passes.analysis.hook_inspection import hook_inspection_analysis_pass
from chop.passes.analysis.init_metadata import init_metadata_analysis_pass
from chop.passes.analysis.profile_statistics import profile_statistics_analysis_pass
from chop.passes.analysis.report_graph import report_graph_analysis_pass
from chop.passes.analysis.report_node_meta_param import report_node_meta_param_analysis_pass
from chop.passes.analysis.report_nodes import (
    report_node_hardware_type_analysis_pass,
    report_node_shape_analysis_pass,
    report_node_type_analysis_pass,
)
from chop.passes.analysis.report_sparsity import report_sparsity_analysis_pass
from chop.passes.analysis.run_cosim import run_cosim_analysis_pass
from chop.passes.analysis.summarize_quantization import summarize_quantization_analysis_pass
from chop.passes.analysis.synthesis_results import get_synthesis_results
from chop.passes.analysis.verify_common_metadata import verify_common_metadata_analysis_pass
from chop.passes.analysis.verify_metadata import (
    verify_hardware_metadata_analysis_pass,
    verify_metadata_analysis_pass,
    verify_software_metadata_analysis_pass,
)
from chop.passes.base import PASSES, GraphPass, graph_pass
from chop.passes.interface.export import export_interface_pass
from chop.passes.interface.export_onnx import export_onnx_interface_pass
from chop.passes.interface.graph_files import (
    load_mase_graph_interface_pass,
    load_node_meta_param_interface_pass,
    save_mase_graph_interface_pass,
    save_node_meta_param_interface_pass,
)
from chop.passes.interface.lora_files import (
    load_lora_adapter_interface_pass,
    save_lora_adapter_interface_pass,
)
from chop.passes.transforms.awq import awq_transform_pass
from chop.passes.transforms.calibrate import calibrate_transform_pass
from chop.passes.transforms.conv_bn_fusion import conv_bn_fusion_transform_pass
from chop.passes.transforms.emit_bram import emit_bram_transform_pass
from chop.passes.transforms.emit_cocotb import emit_cocotb_transform_pass
from chop.passes.transforms.emit_internal_rtl import emit_internal_rtl_transform_pass
from chop.passes.transforms.emit_verilog_top import emit_verilog_top_transform_pass
from chop.passes.transforms.freeze import freeze_transform_pass
from chop.passes.transforms.fuse_lora_weights import fuse_lora_weights_transform_pass
from chop.passes.transforms.fusions import (
    fuse_attention_transform_pass,
    fuse_linear_activation_transform_pass,
    fuse_rms_norm_transform_pass,
)
from chop.passes.transforms.gptq import gptq_transform_pass
from chop.passes.transforms.insert_lora_adapter import insert_lora_adapter_transform_pass
from chop.passes.transforms.learned_rounding import learned_rounding_transform_pass
from chop.passes.transforms.lower_to_integer import lower_to_integer_transform_pass
from chop.passes.transforms.pack import pack_transform_pass
from chop.passes.transforms.prune import prune_transform_pass
from chop.passes.transforms.prune_detach_hook import prune_detach_hook_transform_pass
from chop.passes.transforms.quantize import quantize_transform_pass
from chop.passes.transforms.raise_granularity import raise_granularity_transform_pass
from chop.passes.transforms.resharding import resharding_transform_pass
from chop.passes.transforms.rotate import rotate_transform_pass
from chop.passes.transforms.share_scales import share_scales_transform_pass
from chop.passes.transforms.smoothquant import smoothquant_transform_pass
from chop.paths.not_built import missing_passes

graph = importlib.import_module("chop.passes.graph")
"""Alias of the passes under MASE's longer path."""

globals().update(missing_passes())


def __getattr__(name: str) -> GraphPass:
    """Returns a pass that was added by another package or by the program."""
    if name.startswith("__") or name not in PASSES:
        message = explain_missing(f"{__name__}.{name}")
        raise AttributeError(message, name=name, obj=sys.modules[__name__])
    return PASSES[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *PASSES})


__all__ = [
    "PASSES",
    "add_common_metadata_analysis_pass",
    "add_hardware_metadata_analysis_pass",
    "add_natural_sparsity_metadata_analysis_pass",
    "add_pruning_metadata_analysis_pass",
    "add_software_metadata_analysis_pass",
    "autosharding_analysis_pass",
    "awq_transform_pass",
    "calculate_avg_bits_mg_analysis_pass",
    "calibrate_transform_pass",
    "conv_bn_fusion_transform_pass",
    "emit_bram_transform_pass",
    "emit_cocotb_transform_pass",
    "emit_internal_rtl_transform_pass",
    "emit_verilog_top_transform_pass",
    "export_interface_pass",
    "export_onnx_interface_pass",
    "freeze_transform_pass",
    "fuse_attention_transform_pass",
    "fuse_linear_activation_transform_pass",
    "fuse_lora_weights_transform_pass",
    "fuse_rms_norm_transform_pass",
    "get_synthesis_results",
    "gptq_transform_pass",
    "graph",
    "graph_pass",
    "hook_inspection_analysis_pass",
    "init_metadata_analysis_pass",
    "insert_lora_adapter_transform_pass",
    "learned_rounding_transform_pass",
    "load_lora_adapter_interface_pass",
    "load_mase_graph_interface_pass",
    "load_node_meta_param_interface_pass",
    "lower_to_integer_transform_pass",
    "module",
    "pack_transform_pass",
    "profile_statistics_analysis_pass",
    "prune_detach_hook_transform_pass",
    "prune_transform_pass",
    "quantize_transform_pass",
    "raise_granularity_transform_pass",
    "report_graph_analysis_pass",
    "report_node_hardware_type_analysis_pass",
    "report_node_meta_param_analysis_pass",
    "report_node_shape_analysis_pass",
    "report_node_type_analysis_pass",
    "report_sparsity_analysis_pass",
    "save_lora_adapter_interface_pass",
    "save_mase_graph_interface_pass",
    "save_node_meta_param_interface_pass",
    "run_cosim_analysis_pass",
    "resharding_transform_pass",
    "rotate_transform_pass",
    "share_scales_transform_pass",
    "smoothquant_transform_pass",
    "summarize_quantization_analysis_pass",
    "verify_common_metadata_analysis_pass",
    "verify_hardware_metadata_analysis_pass",
    "verify_metadata_analysis_pass",
    "verify_software_metadata_analysis_pass",
    *missing_passes(),
]
