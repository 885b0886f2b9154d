"""What the analysis passes say of pruned and unpruned graphs."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils import prune as oracle

from chop import MaseGraph, passes


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


class Half(nn.Module):
    def forward(self, x):
        return x * (torch.arange(x.numel(), device=x.device).view(x.shape) % 2)


class Bare(nn.Module):
    """Computes with a parameter of its own, so that it is no leaf."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        return x @ self.weight


def remove(net):
    oracle.remove(oracle.l1_unstructured(net[0], "weight", 0.5), "weight")


PRUNED_BY_TORCH = {
    "l1": lambda net: oracle.l1_unstructured(net[0], "weight", 0.5),
    "ln": lambda net: oracle.ln_structured(net[0], "weight", 0.25, n=2, dim=0),
    "global": lambda net: oracle.global_unstructured(
        [(net[0], "weight"), (net[2], "weight")], oracle.L1Unstructured, amount=0.5
    ),
    "own mask": lambda net: oracle.custom_from_mask(net[0], "weight", torch.eye(16, 8)),
    "no leaf": lambda net: oracle.l1_unstructured(net[4], "weight", 0.5),
    "removed": remove,
    "parametrized": lambda net: parametrize.register_parametrization(net[0], "weight", Half()),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PRUNED_BY_TORCH)
@pytest.mark.filterwarnings("ignore:capture of Sequential. forward also sets Bare.weight")
def test_what_torch_has_pruned_is_counted(name):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), Bare())
    PRUNED_BY_TORCH[name](net)
    x = torch.randn(3, 8)
    net(x)
    zeros = {f"{i}.weight": int((net[i].weight == 0).sum()) for i in (0, 2, 4)}
    has_mask = {f"{i}.weight": hasattr(net[i], "weight_mask") for i in (0, 2, 4)}
    masked = {weight: count * has_mask[weight] for weight, count in zeros.items()}
    mg = MaseGraph(net, dummy_in={"input": x})
    mg.model.train()
    optimizer = torch.optim.SGD(mg.model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        _, info = passes.report_sparsity_analysis_pass(mg, {"quiet": True})
        assert {row["parameter"]: row["zeros"] for row in info["weights"]} == zeros
        assert {row["parameter"]: row["hidden"] for row in info["weights"]} == masked
        assert info["weight_sparsity"] == sum(zeros.values()) / (128 + 128 + 64)
        if name == "removed":  # what was made permanent may train
            return
        mg.model(x).square().mean().backward()
        optimizer.step()
    noted, _ = passes.init_metadata_analysis_pass(mg)
    _, info = passes.add_pruning_metadata_analysis_pass(noted, {})
    assert info["sparsity"] == (masked["0.weight"] + masked["2.weight"]) / 256
