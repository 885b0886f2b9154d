"""Passes on plain modules, for models that are not raised to a graph: `(module, settings)`."""

from chop.passes.module.calculate_avg_bits import calculate_avg_bits_module_analysis_pass
from chop.passes.module.quantize_module import quantize_module_transform_pass
from chop.passes.module.report_trainable_parameters import (
    report_trainable_parameters_analysis_pass,
)
