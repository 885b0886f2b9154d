"""Which weights are hidden, in which layers, and what the settings may say."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune as oracle

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.nn.quantized import QuantLinear
from chop.nn.sparsity import PruneActivation, get_masked, get_sparsity
from tests.networks import Made, Tied
from tests.subcases import subcases


def prune(mg, batches=None, activation=None, include=None, exclude=(), **weight):
    settings = {"include": include, "exclude": exclude, "batches": batches}
    settings |= {"weight": weight} if weight else {}
    settings |= {"activation": activation} if activation else {}
    settings = {
        k: v
        for k, v in settings.items()
        if v is not None and not (k in ("include", "exclude") and not v)
    }
    return passes.prune_transform_pass(mg, settings)


def masks(mg):
    found = {name: get_masked(module) for name, module in mg.modules.items()}
    return {name: hidden for name, hidden in found.items() if hidden is not None}


@pytest.mark.parametrize("sparsity", [0.0, 0.1, 0.5, 0.77, 0.999])
def test_local_magnitude_equals_torchs(net_graph, sparsity):
    pruned, info = prune(net_graph, sparsity=sparsity)
    hidden = masks(pruned)
    assert list(hidden) == ["conv", "fc1", "fc2"] == list(info["layers"])
    for name, mask in hidden.items():
        layer = net_graph.copy().modules[name]
        oracle.l1_unstructured(layer, "weight", amount=round(sparsity * mask.numel()))
        assert torch.equal(mask, layer.weight_mask == 0)
        assert info["layers"][name] == pytest.approx(sparsity, abs=0.5 / mask.numel())


@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.9])
def test_global_magnitude_equals_torchs(net_graph, sparsity):
    pruned, info = prune(net_graph, sparsity=sparsity, scope="global", method="l2-norm")
    other = net_graph.copy()
    layers = [(other.modules[name], "weight") for name in ("conv", "fc1", "fc2")]
    count = round(sparsity * sum(module.weight.numel() for module, _ in layers))
    oracle.global_unstructured(layers, oracle.L1Unstructured, amount=count)
    for (layer, _), mask in zip(layers, masks(pruned).values(), strict=True):
        assert torch.equal(mask, layer.weight_mask == 0)
    assert info["hidden"] == count


def test_outputs_are_those_of_zeroed_weights(bert_graph, bert_inputs):
    pruned, _ = prune(bert_graph, sparsity=0.6)
    other = bert_graph.copy()
    with torch.no_grad():
        for name, mask in masks(pruned).items():
            other.modules[name].weight[mask] = 0
    ours, theirs = pruned.model(**bert_inputs), other.model(**bert_inputs)
    assert torch.equal(ours["logits"], theirs["logits"])
    assert not torch.equal(ours["logits"], bert_graph.model(**bert_inputs)["logits"])
    assert not masks(bert_graph), "the caller's graph stays as it was"
    stored = pruned.modules["classifier"].weight_orig
    assert torch.equal(stored, bert_graph.modules["classifier"].weight)


def test_random_is_seeded_and_leaves_the_global_generator_alone(net_graph):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    one, _ = prune(net_graph, sparsity=0.5, method="random")
    assert torch.equal(torch.rand(1), expected)
    same, _ = prune(net_graph, sparsity=0.5, method="random")
    other, info = prune(net_graph, sparsity=0.5, method="random", seed=1)
    assert torch.equal(masks(one)["fc2"], masks(same)["fc2"])
    assert not torch.equal(masks(one)["fc2"], masks(other)["fc2"])
    assert info["layers"] == {"conv": 0.5, "fc1": 0.5, "fc2": 0.5}


LAYERS = ("conv", "fc1", "fc2")


def by_torch(layer, amount, granularity="elementwise"):
    if granularity == "column":
        oracle.ln_structured(layer, "weight", amount, n=1, dim=1)
    else:
        oracle.l1_unstructured(layer, "weight", amount)


@pytest.mark.parametrize("amounts", [(0.5, 0.5), (0.9, 0.25), (0.2, 0.6, 0.4)])
@pytest.mark.parametrize("granularity", ["elementwise", "column"])
def test_masks_add_up_as_torchs_do(net_graph, amounts, granularity):
    pruned, layer = net_graph, net_graph.copy().modules["fc2"]
    for amount in amounts:
        pruned, info = prune(pruned, sparsity=amount, granularity=granularity, include=["fc2"])
        by_torch(layer, amount, granularity)
    assert torch.equal(pruned.modules["fc2"].weight_mask, layer.weight_mask.bool())
    assert info["hidden"] == int((layer.weight_mask == 0).sum())
    assert torch.equal(pruned.modules["fc2"].weight_orig, net_graph.modules["fc2"].weight)


@pytest.mark.parametrize("first", ["l1-norm", "random"])
def test_global_masks_add_up_as_torchs_do(net_graph, first):
    pruned, _ = prune(net_graph, sparsity=0.4, method=first)
    other = net_graph.copy()
    for name in LAYERS:
        mask = pruned.modules[name].weight_mask
        oracle.custom_from_mask(other.modules[name], "weight", mask.float())
    pruned, info = prune(pruned, sparsity=0.3, scope="global")
    layers = [(other.modules[name], "weight") for name in LAYERS]
    oracle.global_unstructured(layers, oracle.L1Unstructured, amount=0.3)
    for name in LAYERS:
        assert torch.equal(pruned.modules[name].weight_mask, other.modules[name].weight_mask.bool())
    assert info["hidden"] == sum(int((layer.weight_mask == 0).sum()) for layer, _ in layers)


@pytest.mark.parametrize("second", [{"granularity": "2:4"}, {"sparsity": 0.5, "method": "random"}])
def test_masks_of_other_kinds_add_up(net_graph, second):
    before, _ = prune(net_graph, sparsity=0.3, include=["fc2"])
    after, _ = prune(before, include=["fc2"], **second)
    kept, was = after.modules["fc2"].weight_mask, before.modules["fc2"].weight_mask
    assert not (kept & ~was).any() and (was & ~kept).any()
    if "granularity" in second:
        assert (kept.reshape(-1, 4).sum(1) <= 2).all()
    else:
        left = int(was.sum())
        assert int(kept.sum()) == left - round(0.5 * left)


def test_wanda_masks_the_same_share_of_what_is_left_of_each_row(net_graph):
    mask = torch.ones(8, 8)
    mask[0, :6] = 0
    oracle.custom_from_mask(net_graph.modules["fc2"], "weight", mask)
    batches = [{"x": torch.randn(4, 1, 6, 7)}]
    pruned, _ = prune(net_graph, batches, sparsity=0.5, method="wanda", include=["fc2"])
    kept = pruned.modules["fc2"].weight_mask
    assert kept.sum(1).tolist() == [1, *[4] * 7] and not (kept & ~mask.bool()).any()


def test_n_of_m_hides_the_smallest_of_each_group(net_graph):
    pruned, info = prune(net_graph, granularity="1:4")
    weight, hidden = net_graph.modules["fc2"].weight, masks(pruned)["fc2"]
    largest = weight.abs().view(8, 2, 4).argmax(-1, keepdim=True)
    expected = torch.ones(8, 2, 4, dtype=torch.bool).scatter(-1, largest, False).view(8, 8)
    assert torch.equal(hidden, expected)
    assert list(info["skipped"]) == ["conv"] and "1 inputs" in info["skipped"]["conv"]
    assert info["sparsity"] == 0.75


def test_columns_go_as_a_whole(net_graph):
    pruned, _ = prune(net_graph, granularity="column", sparsity=0.5, include=["fc2"])
    hidden = masks(pruned)["fc2"]
    norms = net_graph.modules["fc2"].weight.abs().sum(0)
    assert torch.equal(hidden, (norms < norms.sort().values[4]).expand(8, 8))


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (None, (), {"conv", "fc1", "fc2"}),
        (["linear"], (), {"fc1", "fc2"}),
        (["fc1", "conv2d"], (), {"conv", "fc1"}),
        (["fc.*"], ["fc2"], {"fc1"}),
        (None, ["linear"], {"conv"}),
    ],
)
def test_layers_are_chosen_by_operator_path_and_pattern(net_graph, include, exclude, expected):
    pruned, info = prune(net_graph, sparsity=0.5, include=include, exclude=exclude)
    assert set(masks(pruned)) == set(info["layers"]) == expected


def test_a_sparsity_per_layer_reaches_what_it_names(bert_graph):
    shares = {"bert.pooler.dense": 0.25, r"bert\..*dense": 0.75, "embedding": 0.5}
    _, info = prune(bert_graph, sparsity=shares)
    assert info["layers"]["bert.pooler.dense"] == 0.25
    assert info["layers"]["bert.encoder.layer.1.output.dense"] == 0.75
    assert info["layers"]["bert.embeddings.word_embeddings"] == 0.5
    assert "classifier" not in info["layers"]
    with pytest.raises(ConfigError, match="'clasifier': did you mean 'classifier'"):
        prune(bert_graph, sparsity={"clasifier": 0.5})


def test_layers_that_share_a_weight_share_the_mask():
    ids = torch.tensor([[1, 5, 7]])
    mg = MaseGraph(Tied(12, 8), dummy_in={"ids": ids})
    pruned, info = prune(mg, sparsity=0.5)
    table, head = pruned.modules["table"], pruned.modules["head"]
    assert table.weight is head.weight and info["weights"] == 96
    assert torch.equal(table.weight_mask, head.weight_mask)
    kept = table.weight * table.weight_mask
    torch.testing.assert_close(pruned.model(ids), kept[ids] @ kept.t())


def test_a_sharer_that_is_never_called_does_not_matter():
    model = Tied(12, 8)
    model.spare = nn.Embedding(12, 8)
    model.spare.weight = model.table.weight
    pruned, _ = prune(MaseGraph(model, dummy_in={"ids": torch.tensor([[1, 5]])}), sparsity=0.5)
    assert set(masks(pruned)) == {"table", "head"}
    assert pruned.modules["head"].weight is pruned.modules["table"].weight


def test_a_weight_that_is_also_used_bare_is_refused():
    borrowed = Made(lambda m, x: m.fc(x) @ m.fc.weight, fc=nn.Linear(4, 4))
    mg = MaseGraph(borrowed, dummy_in={"x": torch.randn(3, 4)})
    with pytest.raises(ConfigError, match="'fc' shares its weight with node 'fc_weight'"):
        prune(mg, sparsity=0.5)


def test_a_parametrized_weight_is_masked_as_it_is_and_keeps_its_rows():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))
    torch.nn.utils.parametrizations.weight_norm(model[0])
    mg = MaseGraph(model.eval(), dummy_in={"input": torch.randn(3, 4)})
    with pytest.warns(UserWarning, match="computed weights of '0' .a parametrization. became"):
        assert prune(mg, sparsity=0.5)[1]["layers"] == {"0": 0.5, "2": 0.5}
    _, info = prune(mg, sparsity=0.5, granularity="row")
    assert info["skipped"]["0"] == "the weight of '0' is computed by a parametrization"
    assert info["parameters"][0] == info["parameters"][1]


def test_float_layers_keep_their_state_and_carry_the_mask(net_graph):
    pruned, _ = prune(net_graph, sparsity=0.5, include=["fc1"])
    layer = pruned.modules["fc1"]
    assert type(layer) is QuantLinear and get_sparsity(layer) == 0.5
    added = set(pruned.model.state_dict()) - set(net_graph.model.state_dict())
    assert added == {"fc1.weight_mask", "fc1.weight_orig"}
    assert set(net_graph.model.state_dict()) <= set(pruned.model.state_dict())
    assert layer.pruned_by == {
        "method": "l1-norm",
        "scope": "local",
        "granularity": "elementwise",
    }


@subcases(
    "settings, message",
    [
        ({}, "expected 'weight', 'activation' or both"),
        ({"weight": {}}, "missing key 'sparsity'"),
        ({"weight": {"sparsity": 1.0}}, "sparsity: got 1.0, expected 0 to below 1"),
        (
            {"weight": {"sparsity": {"fc1": -0.1}}},
            r"sparsity\['fc1'\]: got -0.1, expected 0 to below 1",
        ),
        ({"weight": {"sparsity": 0.5, "method": "l1norm"}}, "did you mean 'l1-norm'"),
        ({"weight": {"sparsity": 0.5, "scope": "globall"}}, "did you mean 'global'"),
        ({"weight": {"sparsity": 0.5, "granularity": "element"}}, "did you mean 'elementwise'"),
        ({"weight": {"sparsity": 0.5, "granularity": "4:2"}}, "0 < n < m"),
        ({"weight": {"sparsity": 0.3, "granularity": "2:4"}}, "has sparsity 0.5, got 0.3"),
        ({"weight": {"sparsity": {"fc1": 0.5}, "scope": "global"}}, "has one sparsity"),
        ({"weight": {"sparsity": 0.5, "method": "snip"}}, "looks at gradients: pass 'batches'"),
        ({"weight": {"sparsity": 0.5}, "include": ["conv3d"]}, "did you mean 'conv2d'"),
        ({"weight": {"sparsity": 0.5}, "exclude": ["("]}, "not a regular expression"),
        ({"weight": {"sparsity": 0.5}, "exclude": [".*"]}, "match no layer"),
        ({"activation": {"sparsity": 0.5, "scope": "globall"}}, "did you mean 'global'"),
        ({"weight": {"sparsity": 0.5, "scope": "2:4"}}, "such as 2:4 is a granularity"),
        ({"activation": {"sparsity": {"fc1": 0.5}, "scope": "global"}}, "has one sparsity"),
    ],
)
def test_wrong_settings_are_explained(net_graph, settings, message):
    with pytest.raises(ConfigError, match=message):
        passes.prune_transform_pass(net_graph, settings)


def test_detaching_makes_zeros_permanent_and_layers_plain(net_graph):
    x = torch.randn(2, 1, 6, 7)
    pruned, _ = prune(net_graph, sparsity=0.5)
    plain, info = passes.prune_detach_hook_transform_pass(pruned, {})
    assert torch.equal(plain.model(x), pruned.model(x))
    assert {type(plain.modules[n]) for n in ("fc1", "fc2")} == {nn.Linear}
    assert plain.model.state_dict().keys() == net_graph.model.state_dict().keys()
    assert (plain.modules["fc1"].weight == 0).sum() == 16 and info == {"masks": 3, "pruners": 0}
    assert not net_graph.diff(plain) and len(masks(pruned)) == 3


def test_detaching_keeps_formats_and_removes_activation_pruners(net_graph):
    config = {"name": "integer", "width": 8, "frac_width": 5}
    quantized, _ = passes.quantize_transform_pass(
        net_graph, {"by": "type", "linear": {"config": config}}
    )
    pruned, info = prune(quantized, sparsity=0.5, activation={"sparsity": 0.25})
    assert info["activations"] == 3 and len(pruned.nodes) == len(net_graph.nodes) + 3
    plain, info = passes.prune_detach_hook_transform_pass(pruned)
    assert info == {"masks": 3, "pruners": 3}
    assert [node.name for node in plain.nodes] == [node.name for node in net_graph.nodes]
    assert type(plain.modules["fc1"]) is QuantLinear and type(plain.modules["conv"]) is nn.Conv2d
    assert not plain.modules["fc1"].is_pruned and plain.modules.keys() == net_graph.modules.keys()


# --- activations ---------------------------------------------------------------------------------


def pruners(mg):
    return [m for m in mg.modules.values() if isinstance(m, PruneActivation)]


@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.8])
def test_global_activation_pruning_has_one_threshold_for_all_inputs(net_graph, sparsity, tmp_path):
    batches = [{"x": torch.randn(n, 1, 6, 7)} for n in (4, 7)]
    activation = {"sparsity": sparsity, "scope": "global"}
    pruned, info = prune(net_graph, activation=activation, batches=batches)
    assert info["activations"] == len(pruners(pruned)) == 3
    (threshold,) = {pruner.threshold for pruner in pruners(pruned)}
    _, noted = passes.add_pruning_metadata_analysis_pass(pruned)
    assert noted["layers"]["fc1"]["data_in_0"]["scope"] == "global"
    entering = []
    for name in ("conv", "fc1", "fc2"):
        hook = lambda module, args: entering.append(args[0].abs().flatten())  # noqa: E731
        net_graph.modules[name].register_forward_pre_hook(hook)
    with torch.no_grad():
        for batch in batches:
            net_graph.model.eval()(**batch)
    below = (torch.cat(entering) <= threshold).sum()
    assert below == round(sparsity * torch.cat(entering).numel())
    pruned.export(tmp_path / "graph")
    again = MaseGraph.from_checkpoint(tmp_path / "graph")
    assert torch.equal(again.model(**batches[0]), pruned.model(**batches[0]))
    harder, _ = prune(pruned, activation={"sparsity": sparsity, "method": "random"})
    assert [pruner.threshold for pruner in pruners(harder)] == [None] * 3


def test_global_activation_pruning_without_batches_prunes_each_tensor_and_says_so(net_graph):
    weight = {"sparsity": 0.5, "method": "l1-norm", "scope": "global"}
    with pytest.warns(UserWarning, match="scope 'global' needs 'batches'") as told:
        pruned, _ = passes.prune_transform_pass(net_graph, {"weight": weight, "activation": weight})
    assert len(told) == 1 and told[0].filename == __file__
    local, _ = prune(net_graph, activation={"sparsity": 0.5}, **weight)
    x = torch.randn(3, 1, 6, 7)
    assert torch.equal(pruned.model(x), local.model(x))


def test_batches_that_come_once_serve_weights_and_activations(net_graph):
    settings = {"sparsity": 0.5, "scope": "global"}
    once = ({"x": torch.randn(2, 1, 6, 7)} for _ in range(2))
    pruned, info = prune(net_graph, activation=settings, batches=once, method="wanda", **settings)
    assert info["sparsity"] == 0.5 and all(p.threshold > 0 for p in pruners(pruned))


def test_tables_have_no_input_to_prune(bert_graph):
    chosen = ["embedding", "classifier"]
    pruned, info = prune(bert_graph, activation={"sparsity": 0.5}, include=chosen, sparsity=0.5)
    assert info["activations"] == len(pruners(pruned)) == 1
    assert len(masks(pruned)) > 1
    with pytest.raises(ConfigError, match="tables have no input"):
        prune(bert_graph, activation={"sparsity": 0.5}, include=["embedding"])
