"""Passes on plain modules without a graph: `(module, settings)`."""

from chop.passes.analysis.autosharding import autosharding_analysis_pass
from chop.passes.module.calculate_avg_bits import calculate_avg_bits_module_analysis_pass
from chop.passes.module.quantize_module import quantize_module_transform_pass
from chop.passes.module.report_trainable_parameters import report_trainable_parameters_analysis_pass
from chop.passes.transforms.resharding import resharding_transform_pass
from chop.paths.not_built import ann2snn_module_transform_pass, attention_transform_pass

__all__ = [
    "ann2snn_module_transform_pass",
    "attention_transform_pass",
    "autosharding_analysis_pass",
    "calculate_avg_bits_module_analysis_pass",
    "quantize_module_transform_pass",
    "report_trainable_parameters_analysis_pass",
    "resharding_transform_pass",
]
