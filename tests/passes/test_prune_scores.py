"""Scores that look at data, against their formulas written out; NaN has none."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.nn.sparsity import get_masked


class Classifier(nn.Module):
    """A convolution, a grouped one, a transposed one and a linear layer."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.grouped = nn.Conv2d(4, 6, 2, groups=2)
        self.up = nn.ConvTranspose2d(6, 3, 2)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(3, 5)

    def forward(self, x):
        x = self.up(F.relu(self.grouped(F.relu(self.conv(x)))))
        return self.fc(self.drop(x.mean((2, 3))))


@pytest.fixture
def mg():
    return MaseGraph(Classifier(), dummy_in={"x": torch.randn(2, 2, 6, 6)})


@pytest.fixture
def batches():
    return [
        {"x": torch.randn(n, 2, 6, 6), "labels": torch.arange(n) % 5, "unused": 1} for n in (4, 7)
    ]


def prune(mg, batches, **weight):
    config = {"weight": {"sparsity": 0.4, **weight}, "batches": batches}
    pruned, _ = passes.prune_transform_pass(mg, config)
    return {name: get_masked(module) for name, module in pruned.modules.items()}


def lowest(scores, share=0.4):
    count = round(share * scores.numel())
    return scores < scores.flatten().sort().values[count]


def saliency(mg, batches, name):
    """Sum over batches of weight times gradient, by backward on a copy in eval mode."""
    model = mg.copy().model.eval()
    weight = model.get_submodule(name).weight
    total = torch.zeros_like(weight)
    for batch in batches:
        model.zero_grad()
        F.cross_entropy(model(batch["x"]), batch["labels"]).backward()
        total += (weight * weight.grad).detach()
    return total


@pytest.mark.parametrize(("method", "sign"), [("movement", -1), ("snip", 0)])
def test_gradient_scores(mg, batches, method, sign):
    hidden = prune(mg, iter(batches), method=method)
    for name in ("conv", "grouped", "up", "fc"):
        products = saliency(mg, batches, name)
        expected = lowest(sign * products if sign else products.abs())
        assert torch.equal(hidden[name], expected), name
    assert all(p.grad is None for p in mg.model.parameters())


def test_wanda_weighs_by_the_norm_of_each_input(mg, batches):
    hidden = prune(mg, batches, method="wanda")
    model = mg.copy().model.eval()
    seen = {}
    for name in ("conv", "grouped", "up", "fc"):
        module = model.get_submodule(name)
        module.register_forward_pre_hook(lambda m, a, n=name: seen.setdefault(n, []).append(a[0]))
    with torch.no_grad():
        for batch in batches:
            model(batch["x"])
    for name, inputs in seen.items():
        weight = model.get_submodule(name).weight
        x = torch.cat([i.movedim(1, -1).reshape(-1, i.shape[1]) for i in inputs])
        norms = x.norm(dim=0)
        if name == "grouped":  # outputs 0 to 2 see inputs 0 and 1, the others 2 and 3
            norms = norms.view(2, 2).repeat_interleave(3, 0).view(6, 2, 1, 1)
        elif name == "up":
            norms = norms.view(6, 1, 1, 1)
        else:
            norms = norms.view(1, -1, *[1] * (weight.dim() - 2))
        scores = (weight.abs() * norms).detach()
        output = 1 if name == "up" else 0
        rows = scores.movedim(output, 0).flatten(1)
        mine = hidden[name].movedim(output, 0).flatten(1)
        assert int(mine.sum()) == round(0.4 * weight.numel())
        for row, marks in zip(rows, mine, strict=True):
            count = int(marks.sum())
            assert abs(count - 0.4 * len(row)) < 1
            assert torch.equal(marks, row < row.sort().values[count]), name


def test_wanda_over_all_weights_when_the_scope_is_global(mg, batches):
    hidden = prune(mg, batches, method="wanda", scope="global")
    shares = [hidden[name].float().mean().item() for name in ("conv", "grouped", "up", "fc")]
    total = sum(int(hidden[name].sum()) for name in ("conv", "grouped", "up", "fc"))
    assert total == round(0.4 * sum(hidden[n].numel() for n in ("conv", "grouped", "up", "fc")))
    assert max(shares) - min(shares) > 0.1


def test_a_graph_with_a_loss_uses_it(bert_graph, bert_inputs):
    hidden = prune(bert_graph, [bert_inputs], method="snip")
    model = bert_graph.copy().model.eval()
    model(**bert_inputs)["loss"].backward()
    weight = model.get_submodule("classifier").weight
    assert torch.equal(hidden["classifier"], lowest((weight * weight.grad).abs().detach()))


def test_frozen_weights_and_modes_do_not_matter(mg, batches):
    before = mg.copy()
    before.model.train()
    before.modules["fc"].weight.requires_grad_(False)
    config = {"weight": {"sparsity": 0.4, "method": "snip"}, "batches": batches}
    after, _ = passes.prune_transform_pass(before, config)
    hidden = prune(mg, batches, method="snip")
    assert torch.equal(get_masked(after.modules["fc"]), hidden["fc"])
    assert not after.modules["fc"].weight.requires_grad and after.modules["drop"].training
    assert torch.equal(get_masked(after.modules["conv"]), hidden["conv"])


@pytest.mark.parametrize("method", ["movement", "snip", "wanda"])
def test_old_masks_stay(mg, batches, method):
    before, _ = passes.prune_transform_pass(mg, {"weight": {"sparsity": 0.5}})
    config = {"weight": {"sparsity": 0.4, "method": method}, "batches": batches}
    after, _ = passes.prune_transform_pass(before, config)
    for name in ("conv", "fc"):
        old, new = get_masked(before.modules[name]), get_masked(after.modules[name])
        assert (new & old).sum() == old.sum()
        assert new.sum() - old.sum() == round(0.4 * int((~old).sum()))


def test_missing_data_is_explained(mg, batches):
    for batch in batches:
        del batch["labels"]
    with pytest.raises(ConfigError, match="needs a loss. Add 'labels' to the batches"):
        prune(mg, batches, method="movement")


def test_tables_have_no_inputs_to_weigh(bert_graph, bert_inputs):
    config = {"weight": {"sparsity": 0.5, "method": "wanda"}, "batches": [bert_inputs]}
    with pytest.raises(ConfigError, match="is a lookup table"):
        passes.prune_transform_pass(bert_graph, {**config, "include": ["embedding"]})


NOT_FINITE = [math.nan, math.inf, -math.inf]


def rows():
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


def graph(bad=None):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    mg = MaseGraph(net.eval(), dummy_in={"input": rows()})
    if bad is not None:
        with torch.no_grad():
            mg.model.get_parameter("2.weight")[3, 1] = bad
    return mg


@pytest.mark.parametrize("scope", ["local", "global"])
@pytest.mark.parametrize("method", ["l1-norm", "l2-norm"])
@pytest.mark.parametrize("granularity", ["elementwise", "2:4", "column", "channel"])
@pytest.mark.sampled(2)
def test_weights_of_nan_are_refused(scope, method, granularity):
    weight = {"method": method, "scope": scope, "granularity": granularity}
    weight |= {} if granularity == "2:4" else {"sparsity": 0.5}
    with pytest.raises(ConfigError, match="weights of '2' are not finite.*cannot be ranked"):
        passes.prune_transform_pass(graph(math.nan), {"weight": weight})
    _, info = passes.prune_transform_pass(graph(math.nan), {"weight": weight, "exclude": ["2"]})
    assert info["sparsity"] > 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("bad", NOT_FINITE, ids=str)
@pytest.mark.parametrize("place", [(0, 2, 0), (1, 0, 7), (1, 5, 3)], ids=str)
def test_rows_that_are_not_finite_set_no_threshold(bad, place):
    batches = [{"input": rows()}, {"input": rows()}]
    number, row, column = place
    batches[number]["input"][row, column] = bad
    activation = {"sparsity": 0.5, "scope": "global"}
    expected = rf"prune_transform_pass.batches: row {row} of batch {number} causes .* leave the row"
    with pytest.raises(ConfigError, match=expected):
        passes.prune_transform_pass(graph(), {"activation": activation, "batches": batches})


@pytest.mark.parametrize("scope", ["local", "global"])
def test_a_random_choice_needs_no_ranks(scope):
    weight = {"method": "random", "scope": scope, "sparsity": 0.5}
    _, info = passes.prune_transform_pass(graph(math.nan), {"weight": weight})
    assert info["sparsity"] == pytest.approx(0.5, abs=0.01)
