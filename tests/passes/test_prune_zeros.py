"""Zeros of pruned weights: where users look for them, and that the full weights come back."""

import copy
import pickle

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.formats import QuantSpec
from chop.nn.quantized import QuantLinear
from chop.nn.sparsity import attach_mask, detach_mask, get_masked
from chop.train import GradualPruning

LAYERS = ("conv", "fc1", "fc2")
HALF = {"weight": {"sparsity": 0.5}}


def prune(mg, **weight):
    return passes.prune_transform_pass(mg, {"weight": {"sparsity": 0.5, **weight}})[0]


def assert_zeros_shown(mg):
    for name in LAYERS:
        layer, state = mg.modules[name], mg.model.state_dict()
        assert get_masked(layer).any() and (layer.weight[get_masked(layer)] == 0).all()
        assert (state[f"{name}.weight"][get_masked(layer)] == 0).all()
        assert dict(mg.model.named_parameters())[f"{name}.weight"] is layer.weight


def test_users_count_the_zeros_that_are_computed(net_graph):
    pruned = prune(net_graph)
    assert_zeros_shown(pruned)
    zeros = sum(int((pruned.modules[name].weight == 0).sum()) for name in LAYERS)
    assert zeros == sum(pruned.modules[name].weight.numel() for name in LAYERS) // 2
    for name in LAYERS:
        assert torch.equal(pruned.modules[name].weight_orig, net_graph.modules[name].weight)
    assert (net_graph.modules["fc1"].weight != 0).all()


def test_weights_alone_make_a_plain_model_compute_the_same(net_graph):
    pruned, x = prune(net_graph), torch.randn(3, 1, 6, 7)
    plain = net_graph.copy().model
    found = plain.load_state_dict(pruned.model.state_dict(), strict=False)
    masks = {f"{name}.weight_{kind}" for name in LAYERS for kind in ("mask", "orig")}
    assert set(found.unexpected_keys) == masks and not found.missing_keys
    assert torch.equal(plain(x), pruned.model(x))


OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.5),
    "muon": lambda p: torch.optim.Muon([x for x in p if x.dim() == 2], lr=0.05),
}
COPIES = {
    "itself": lambda mg, folder: mg,
    "deepcopy": lambda mg, folder: copy.deepcopy(mg),
    "pickle": lambda mg, folder: pickle.loads(pickle.dumps(mg)),
    "file": lambda mg, folder: saved(mg, folder),
}


def saved(mg, folder):
    mg.export(folder / "graph")
    return MaseGraph.from_checkpoint(folder / "graph")


def train(model, optimizer, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 1, 6, 7)).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.sampled(3)
def test_no_optimizer_moves_a_zero(net_graph, optimizer, way, tmp_path):
    mg = COPIES[way](prune(net_graph), tmp_path)
    before = {name: mg.modules[name].weight.detach().clone() for name in LAYERS}
    train(mg.model.train(), OPTIMIZERS[optimizer](list(mg.model.parameters())))
    assert_zeros_shown(mg)
    moved = [(mg.modules[name].weight != before[name]).any() for name in ("fc1", "fc2")]
    assert all(moved)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_momentum_from_before_the_pruning_moves_nothing_back(net_graph, optimizer):
    model = net_graph.model.train()
    step = OPTIMIZERS[optimizer](list(model.parameters()))
    train(model, step)
    pruning = GradualPruning(net_graph, HALF, schedule="constant")
    pruning(100, 100)
    train(model, step)
    assert_zeros_shown(net_graph)
    assert pruning.report()["sparsity"] == 0.5


def test_pruning_again_sees_what_training_made_of_the_rest(net_graph):
    mg = prune(net_graph, sparsity=0.75)
    train(mg.model, OPTIMIZERS["momentum"](mg.model.parameters()))
    layer = mg.modules["fc2"]
    kept = layer.weight_mask
    full = torch.where(kept, layer.weight, net_graph.modules["fc2"].weight).detach()
    again = prune(mg, sparsity=0.25).modules["fc2"]
    assert torch.equal(again.weight_orig, full)
    assert torch.equal(again.weight, torch.where(again.weight_mask, full, 0))
    assert not (again.weight_mask & ~kept).any()
    plain = QuantLinear.from_float(layer, QuantSpec())
    detach_mask(plain)
    assert torch.equal(plain.weight, full) and "weight_orig" not in plain.state_dict()


def test_weights_assigned_by_hand_are_those_that_count(net_graph):
    mg, x = prune(net_graph), torch.randn(3, 1, 6, 7)
    layer, other = mg.modules["fc2"], torch.randn(8, 8)
    layer.weight.data = other.clone()
    expected = net_graph.copy()
    for name in LAYERS:
        expected.modules[name].weight.data = mg.modules[name].effective("weight").detach()
    assert torch.equal(mg.model(x), expected.model(x))
    again = prune(mg, sparsity=0.25).modules["fc2"]
    assert torch.equal(again.weight_orig, other)
    left = other.abs().masked_fill(~layer.weight_mask, 0)
    smallest = left.flatten().sort().values[32 + 8]
    assert torch.equal(again.weight, torch.where(left < smallest, 0, other))


def dense_beside_masks(mg):
    """The graph as it was before `weight_orig`."""
    for name in LAYERS:
        layer = mg.modules[name]
        layer.weight.data = layer.weight_orig.clone()
        del layer.weight_orig
    return mg


@pytest.mark.parametrize("save_format", ["full_model", "state_dict"])
def test_files_with_dense_weights_beside_masks_show_their_zeros(net_graph, save_format, tmp_path):
    pruned, x = prune(net_graph), torch.randn(3, 1, 6, 7)
    old = dense_beside_masks(pruned.copy())
    old.export(tmp_path / "old", save_format=save_format)
    again = MaseGraph.from_checkpoint(tmp_path / "old")
    assert torch.equal(again.model(x), pruned.model(x))
    assert_zeros_shown(again)
    state, expected = again.model.state_dict(), pruned.model.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in state)


def test_state_dicts_with_dense_weights_beside_masks_load(net_graph):
    pruned = prune(net_graph)
    old = dense_beside_masks(pruned.copy()).model.state_dict()
    assert "fc1.weight_orig" not in old
    target = prune(net_graph, method="random")
    target.model.load_state_dict(old)
    for name in LAYERS:
        assert torch.equal(target.modules[name].weight, pruned.modules[name].weight)
        assert torch.equal(target.modules[name].weight_orig, pruned.modules[name].weight_orig)


def test_layers_that_share_a_weight_keep_one_full_weight():
    first = QuantLinear.from_float(nn.Linear(4, 4), QuantSpec())
    second = QuantLinear.from_float(nn.Linear(4, 4), QuantSpec())
    second.weight = first.weight
    full = first.weight.detach().clone()
    for hidden in (torch.eye(4).bool(), torch.ones(4, 4).triu().bool()):
        for module in (first, second):
            attach_mask(module, hidden, {}, full)
        assert torch.equal(first.weight, torch.where(hidden, 0, full))
    for module in (first, second):
        detach_mask(module)
    assert torch.equal(first.weight, full)


def only_pruned(mg):
    return next(module for module in mg.modules.values() if get_masked(module) is not None)


def test_a_folded_norm_rescales_what_is_hidden():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    nn.init.uniform_(model[1].weight, 0.5, 2)
    x = torch.randn(2, 3, 6, 6)
    mg = MaseGraph(model, dummy_in={"input": x})
    pruned = prune(mg)
    fused, _ = passes.conv_bn_fusion_transform_pass(pruned, {})
    torch.testing.assert_close(fused.model(x), pruned.model(x), atol=1e-5, rtol=1e-5)
    layer = only_pruned(fused)
    assert (layer.weight[~layer.weight_mask] == 0).all()
    detach_mask(layer)
    dense, _ = passes.conv_bn_fusion_transform_pass(mg, {})
    torch.testing.assert_close(layer.weight, dense.modules["0"].weight)


def test_smoothing_rescales_what_is_hidden():
    x = torch.randn(16, 8) * torch.logspace(-1, 1, 8)
    mg = MaseGraph(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)), dummy_in={"input": x})
    mg.modules["0"].weight.data = torch.logspace(-1, 1, 8)
    pruned = prune(mg)
    smooth, _ = passes.smoothquant_transform_pass(pruned, {"batches": [{"input": x}]})
    torch.testing.assert_close(smooth.model(x), pruned.model(x), atol=1e-5, rtol=1e-5)
    layer = only_pruned(smooth)
    assert (layer.weight[~layer.weight_mask] == 0).all()
    detach_mask(layer)
    factors = layer.weight / mg.modules["1"].weight
    assert (factors[0] != 1).all()
    torch.testing.assert_close(factors, factors[:1].expand_as(factors))
