"""Graphs of built-in models in integer formats, for tests of their lowering."""

from functools import cache

from chop import MaseGraph, passes
from chop.actions.compress.ptq import quantize_after_training
from chop.formats import parse_format_string
from chop.ir.ops import quantizable_operators
from chop.models import load_model
from chop.train import default_dataset, load_trained, read_rows
from chop.workloads.workload import Workload

CALIBRATION_ROWS = 64


@cache
def workload(name, trained):
    splits = default_dataset(name)
    model = load_trained(name) if trained else load_model(name, seed=0)
    return Workload.of(model, read_rows(splits["train"]), read_rows(splits["test"]), device="cpu")


@cache
def float_graph(name, trained):
    """With its batch norms folded into convolutions."""
    example = workload(name, trained).example()
    mg = MaseGraph(workload(name, trained).model, dummy_in=example)
    mg, _ = passes.add_common_metadata_analysis_pass(mg, {"dummy_in": example})
    return passes.conv_bn_fusion_transform_pass(mg)[0]


@cache
def quantized_graph(name, formats="8.auto", trained=False):
    """All operators in one format, calibrated; not to be changed."""
    number_format = parse_format_string(formats)
    given = workload(name, trained)
    operators = quantizable_operators()
    return quantize_after_training(
        float_graph(name, trained), number_format, operators, given, CALIBRATION_ROWS
    )


def test_rows(name, count):
    """One batch of rows of the test split, spread over all, with labels; texts are padded."""
    (batch,) = workload(name, False).test.spread(count).batches(count)
    return batch


test_rows.__test__ = False
