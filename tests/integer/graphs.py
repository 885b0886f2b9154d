"""Graphs of built-in models in integer formats, for tests of their lowering."""

from functools import cache

from chop import MaseGraph, passes
from chop.actions.ptq import quantize_after_training
from chop.actions.settings.workload import WorkloadConfig
from chop.actions.workload import load_workload
from chop.formats import parse_format_string
from chop.ir.ops import quantizable_operators

CALIBRATION_ROWS = 64


@cache
def workload(model):
    return load_workload(WorkloadConfig(model=model, device="cpu"))


@cache
def float_graph(model):
    """With its batch norms folded into convolutions."""
    example = workload(model).example()
    mg = MaseGraph(workload(model).model, dummy_in=example)
    mg, _ = passes.add_common_metadata_analysis_pass(mg, {"dummy_in": example})
    return passes.conv_bn_fusion_transform_pass(mg)[0]


@cache
def quantized_graph(model, formats="8.auto"):
    """All operators in one format, calibrated; not to be changed."""
    number_format = parse_format_string(formats)
    return quantize_after_training(
        float_graph(model),
        number_format,
        quantizable_operators(),
        workload(model),
        CALIBRATION_ROWS,
    )


def test_digits(model):
    """One batch of all 360 test rows, with labels."""
    (batch,) = workload(model).test.batches(360)
    return batch


test_digits.__test__ = False
