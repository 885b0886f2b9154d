"""What the analysis passes say of pruned and unpruned graphs."""

import pytest
import torch
from torch import nn

from chop import passes
from chop.errors import ConfigError


def prune(mg, **settings):
    return passes.prune_transform_pass(mg, settings)[0]


def test_pruning_metadata_before_and_after(net_graph):
    _, info = passes.add_pruning_metadata_analysis_pass(net_graph)
    assert info["sparsity"] == 0.0 and list(info["layers"]) == ["conv", "fc1", "fc2"]
    before = net_graph.node("fc1").meta["mase"]["software"]["pruning"]["weight"]
    unpruned = {"sparsity": 0.0, "method": None, "scope": None, "granularity": None}
    assert before == {**unpruned, "hidden": 0, "numel": 32}
    weight = {"sparsity": 0.25, "method": "random", "scope": "global"}
    mg = prune(net_graph, weight=weight, activation={"sparsity": {"fc.": 0.5}})
    mg, info = passes.add_pruning_metadata_analysis_pass(mg, {})
    after = mg.node("fc1").meta["mase"]["software"]["pruning"]
    hidden = int((~mg.modules["fc1"].weight_mask).sum())
    note = {"method": "random", "scope": "global", "granularity": "elementwise"}
    assert after["weight"] == {"sparsity": hidden / 32, **note, "hidden": hidden, "numel": 32}
    assert after["data_in_0"]["sparsity"] == 0.5 and after["data_in_0"]["method"] == "l1-norm"
    assert info["layers"]["conv"]["data_in_0"]["sparsity"] == 0.0
    assert info["sparsity"] == pytest.approx(0.25, abs=1e-2)


def test_zeros_of_weights_are_counted_once(net_graph, capsys):
    with torch.no_grad():
        net_graph.modules["fc2"].weight[:3] = 0
    mg = prune(net_graph, weight={"sparsity": 0.5}, include=["fc1"])
    _, info = passes.report_sparsity_analysis_pass(mg)
    rows = {row["parameter"]: row for row in info["weights"]}
    assert list(rows) == ["conv.weight", "fc1.weight", "fc2.weight"]
    assert (rows["fc1.weight"]["hidden"], rows["fc1.weight"]["zeros"]) == (16, 16)
    assert (rows["fc2.weight"]["hidden"], rows["fc2.weight"]["zeros"]) == (0, 24)
    assert info["weight_sparsity"] == (16 + 24) / (36 + 32 + 64)
    assert info["activation_sparsity"] is None and "fc1.weight" in capsys.readouterr().out
    plain, _ = passes.prune_detach_hook_transform_pass(mg)
    _, info = passes.report_sparsity_analysis_pass(plain, {"quiet": True})
    assert info["weight_sparsity"] == (16 + 24) / (36 + 32 + 64) and not capsys.readouterr().out


def test_zeros_of_activations_are_those_that_flow(net_graph):
    batches = [{"x": torch.randn(n, 1, 6, 7)} for n in (2, 5)]
    settings = {"batches": batches, "quiet": True}
    _, info = passes.report_sparsity_analysis_pass(net_graph, settings)
    rows = {row["node"]: row for row in info["activations"]}
    modules = net_graph.modules
    x = torch.cat([batch["x"] for batch in batches])
    y = nn.functional.relu(modules["bn"](modules["conv"](x)))
    assert rows["relu"]["elements"] == y.numel() and rows["relu"]["zeros"] == int((y == 0).sum())
    assert rows["relu"]["share"] == pytest.approx((y == 0).float().mean().item())
    assert rows["conv"]["zeros"] == 0 and rows["conv"]["operator"] == "conv2d"
    with pytest.raises(ConfigError, match="report_sparsity_analysis_pass.batches.*got none"):
        passes.report_sparsity_analysis_pass(net_graph, {"batches": []})


def test_what_is_attached_to_modules_is_listed(net_graph, capsys):
    mg = prune(net_graph, weight={"sparsity": 0.5}, activation={"sparsity": 0.3}, include=["fc2"])

    def spy(module, args):
        return None

    mg.modules["bn"].register_forward_pre_hook(spy)
    mg.modules["fc1"].register_full_backward_hook(lambda *_: None)
    nn.utils.parametrizations.weight_norm(mg.modules["conv"])
    _, info = passes.hook_inspection_analysis_pass(mg)
    found = info["modules"]
    assert set(found) == {"bn", "fc1", "conv", "fc2", "fc2_pruner"}
    assert "spy" in found["bn"]["forward_pre"][0] and not found["bn"]["forward"]
    assert len(found["fc1"]["backward"]) == 1 and found["conv"]["parametrizations"] == ["weight"]
    assert found["fc2"]["mask"] == 0.5 and found["fc2_pruner"]["pruner"] == 0.3
    assert "30.0%" in capsys.readouterr().out
    _, info = passes.hook_inspection_analysis_pass(net_graph, {"quiet": True})
    assert info == {"modules": {}} and not capsys.readouterr().out
