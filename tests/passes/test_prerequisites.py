"""A pass runs the analysis passes that it needs by itself, on the graph that it works on."""

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import CaptureError, GraphError
from tests.passes.conftest import Net, with_metadata

METADATA = ["init_metadata_analysis_pass", "add_common_metadata_analysis_pass"]
EIGHT = {"by": "type", "linear": {"config": {"name": "integer", "width": 8, "frac_width": 4}}}


def bare() -> MaseGraph:
    torch.manual_seed(0)
    return MaseGraph(Net().eval(), dummy_in={"x": torch.randn(3, 1, 6, 7)})


def steps(mg: MaseGraph) -> list[str]:
    return [step.name for step in mg.provenance]


def test_a_transform_pass_describes_its_copy_and_not_the_graph_it_is_given():
    mg = bare()
    small, info = passes.quantize_transform_pass(mg, EIGHT)
    assert info == {"quantized": 2}
    assert steps(small) == [*METADATA, "quantize_transform_pass"]
    assert mg.provenance == [] and not any("mase" in node.meta for node in mg.nodes)
    expected, _ = passes.quantize_transform_pass(with_metadata(bare()), EIGHT)
    assert small.diff(expected) == []
    for node, other in zip(small.nodes, expected.nodes, strict=True):
        assert repr(node.meta["mase"].common) == repr(other.meta["mase"].common)


def test_in_place_the_graph_itself_is_described():
    mg = bare()
    assert passes.quantize_transform_pass(mg, EIGHT, inplace=True)[0] is mg
    assert steps(mg) == [*METADATA, "quantize_transform_pass"]


@pytest.mark.parametrize(
    "name",
    [
        *("calculate_avg_bits_mg_analysis_pass", "report_node_shape_analysis_pass"),
        *("add_software_metadata_analysis_pass", "add_hardware_metadata_analysis_pass"),
        *("summarize_quantization_analysis_pass", "fuse_attention_transform_pass"),
    ],
)
@pytest.mark.sampled(1)
def test_passes_need_no_others_before_them(name):
    result, info = passes.PASSES[name](bare())
    assert steps(result) == [*METADATA, name]
    assert info == passes.PASSES[name](with_metadata(bare()))[1]


def test_what_has_run_is_not_run_again():
    mg = with_metadata(bare())
    mg.node("fc1").meta["mase"]["software"]["mine"] = 1
    passes.calculate_avg_bits_mg_analysis_pass(mg)
    assert mg.node("fc1").meta["mase"]["software"]["mine"] == 1
    assert steps(mg) == [*METADATA, "calculate_avg_bits_mg_analysis_pass"]


def test_transform_passes_are_not_run_for_another():
    mg = bare()
    with pytest.raises(GraphError, match="gptq_transform_pass: run quantize_transform_pass"):
        passes.gptq_transform_pass(mg, {"batches": []})
    assert mg.provenance == []


def test_the_error_of_the_needed_pass_is_the_one_that_is_raised():
    mg = MaseGraph(nn.Linear(2, 2), dummy_in={"input": torch.ones(3, 2)})
    spec = mg.model.example_inputs["input"]
    mg.model.example_inputs["input"] = type(spec)(("input.shape[0]", 2), spec.dtype)
    with pytest.raises(CaptureError, match="expected numeric sizes"):
        passes.quantize_transform_pass(mg, EIGHT)
    assert mg.provenance == []
