import copy

import pytest
import torch

from chop import MaseGraph, passes
from chop.distributed import apply
from chop.distributed.apply import shard_graph
from chop.errors import ConfigError, DistributedError, PlanError
from chop.models import get_model
from chop.nn.quantized import QuantizedOperator
from chop.pipelines import AutoPipeline, AutoPipelineForDistributedInference, CompressionPipeline

X = torch.linspace(-2, 2, 3 * 64).view(3, 1, 8, 8)
ARGS = {
    "quantize_transform_pass": {
        "by": "type",
        "default": {"config": {"name": None}},
        "linear": {"config": {"name": "integer", "width": 8, "frac_width": 5}},
    },
    "prune_transform_pass": {
        "weight": {"sparsity": 0.5, "method": "l1-norm", "scope": "local"},
    },
}


@pytest.fixture
def mg():
    return MaseGraph(get_model("toy-tiny").eval())


def test_quantizes_then_prunes_and_leaves_its_arguments(mg):
    args, before = copy.deepcopy(ARGS), mg.model(X)
    pipeline = CompressionPipeline()
    small, found = pipeline(mg, pass_args=args)
    assert list(found) == ["quantize_transform_pass", "prune_transform_pass"]
    assert args == ARGS and torch.equal(mg.model(X), before)
    layers = [m for m in small.modules.values() if isinstance(m, QuantizedOperator)]
    assert len(layers) == 3 and all(layer.is_pruned for layer in layers)
    again, _ = pipeline(mg, args)
    assert torch.equal(again.model(X), small.model(X))
    names = [step.name for step in small.provenance]
    assert names[:2] == ["init_metadata_analysis_pass", "add_common_metadata_analysis_pass"]


def test_what_has_no_settings_or_is_skipped_does_not_run(mg):
    _, found = CompressionPipeline()(mg, {"prune_transform_pass": ARGS["prune_transform_pass"]})
    assert list(found) == ["prune_transform_pass"]
    for skip in ("prune_transform_pass", passes.prune_transform_pass):
        for given in (skip, [skip]):
            _, found = CompressionPipeline()(mg, pass_args=ARGS, skip_passes=given)
            assert list(found) == ["quantize_transform_pass"]


def test_wrong_names_are_told(mg):
    with pytest.raises(ConfigError, match="'quantze_transform_pass': did you mean 'quantize_tra"):
        CompressionPipeline()(mg, pass_args={"quantze_transform_pass": {}})
    with pytest.raises(ConfigError, match="no pass 'prune': did you mean 'prune_transform_p"):
        CompressionPipeline()(mg, pass_args=ARGS, skip_passes=["prune"])
    with pytest.raises(ConfigError, match="pass_args is empty"):
        CompressionPipeline()(mg)


def test_groups_of_ones_own(mg):
    def first_pass(mg, pass_args={}):  # noqa: B006
        for node in mg.fx_graph.nodes:  # in place, as users do
            node.meta["seen"] = True
        with torch.no_grad():
            mg.modules["seq_blocks.0"].weight.zero_()
        return mg, dict(pass_args)

    bits = "calculate_avg_bits_mg_analysis_pass"
    pipeline = AutoPipeline([[first_pass], [passes.report_node_type_analysis_pass, bits]])
    before = mg.model(X)
    _, found = pipeline(
        mg, {"first_pass": {"k": 1}}, skip_passes=["report_node_type_analysis_pass"]
    )
    assert found["first_pass"] == {"k": 1} and found[bits]["w_avg_bit"] == 32
    assert len(found) == 2 and not mg.provenance
    assert torch.equal(mg.model(X), before) and not any("seen" in n.meta for n in mg.nodes)


@pytest.fixture
def process_group():
    """Ends the process group that the test leaves."""
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_distributed_inference_shards_by_a_plan_that_is_given(mg):
    args = {"resharding_transform_pass": {"plan": "rows", "mesh": 1}}
    sharded, info = AutoPipelineForDistributedInference()(mg, pass_args=args)
    found = info["resharding_transform_pass"]
    assert list(info) == ["resharding_transform_pass"] and found["plan"].name == "rows"
    assert found["local_bytes"] == found["whole_bytes"] > 0
    assert found["check"].nodes == len(mg.nodes) and found["check"].max_difference == 0
    with torch.no_grad():
        assert torch.equal(sharded.model(X), mg.model(X))
    with torch.inference_mode(), pytest.raises(PlanError, match=r"use torch\.no_grad\(\)"):
        sharded.model(X)


@pytest.mark.usefixtures("process_group")
def test_distributed_inference_is_compared_with_one_process_unless_told_not_to(mg, monkeypatch):
    def shard_wrongly(graph, *arguments):
        shard_graph(graph, *arguments)
        next(graph.model.parameters()).to_local().data.mul_(2)

    monkeypatch.setattr(apply, "shard_graph", shard_wrongly)
    args = {"plan": "rows", "mesh": 1}
    with pytest.raises(DistributedError, match="is the first that differs from one process"):
        AutoPipelineForDistributedInference()(mg, {"resharding_transform_pass": args})
    unchecked = {"resharding_transform_pass": {**args, "check": False}}
    sharded, info = AutoPipelineForDistributedInference()(mg, unchecked)
    assert info["resharding_transform_pass"]["check"] is None
    with torch.no_grad():
        assert not torch.equal(sharded.model(X), mg.model(X))
    training = mg.copy()
    training.model.train()
    with pytest.raises(ConfigError, match="in evaluation mode"):
        AutoPipelineForDistributedInference()(training, {"resharding_transform_pass": args})


@pytest.mark.parametrize("args", [None, {"autosharding_analysis_pass": {"mesh": 1}}])
@pytest.mark.sampled(1)
def test_distributed_inference_without_a_plan_searches_for_one(mg, args):
    try:
        sharded, info = AutoPipelineForDistributedInference()(mg, pass_args=args)
        found = info["autosharding_analysis_pass"]["plan"]
        assert info["resharding_transform_pass"]["plan"] == found
        assert found.mesh == (1,) and found.name == "auto"
        with torch.no_grad():
            assert torch.equal(sharded.model(X), mg.model(X))
    finally:
        torch.distributed.destroy_process_group()


def test_distributed_inference_takes_a_plan_or_searches_for_one(mg):
    both = {"autosharding_analysis_pass": {}, "resharding_transform_pass": {"plan": "rows"}}
    with pytest.raises(ConfigError, match="has a plan; expected none where autosharding"):
        AutoPipelineForDistributedInference()(mg, pass_args=both)


def test_distributed_inference_is_not_sharded_by_another_plan_than_the_one_searched(mg):
    unsearched = "has no plan, because autosharding_analysis_pass has not run"
    with pytest.raises(ConfigError, match=unsearched):
        AutoPipelineForDistributedInference()(mg, skip_passes=["autosharding_analysis_pass"])
