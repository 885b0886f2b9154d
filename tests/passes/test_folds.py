"""Scales that move between layers: equal on the batches, or undone and reported."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from chop import MaseGraph, passes
from chop.quantization.folding.check import FoldCheck
from chop.quantization.folding.folding import find_sites, fold_changes
from tests.networks import Made

from .conftest import with_metadata

FORMAT = {"name": "mxint", "width": 4, "block_size": 4}
SIZE = 8


class Stack(nn.Module):
    """A norm, two layers, and what a case puts in their places."""

    def __init__(self, norm=None, first=None, forward=None):
        super().__init__()
        self.norm = norm or nn.LayerNorm(SIZE)
        self.first = first or nn.Linear(SIZE, SIZE)
        self.second = nn.Linear(SIZE, SIZE)
        self.other = nn.Conv1d(SIZE, SIZE, 1)
        self.route = forward

    def forward(self, x):
        return self.route(self, x) if self.route else self.second(self.first(self.norm(x)).relu())


class CosineLinear(nn.Linear):
    def forward(self, x):
        return F.linear(x, F.normalize(self.weight, dim=-1))


def tied():
    net = Stack()
    net.second.weight = net.first.weight
    return net


def hooked():
    net = Stack()
    net.norm.register_forward_hook(lambda module, args, y: y + 1)
    return net


def held():
    net = Stack(forward=lambda m, x: m.first(m.norm(x)) + m.leaf(x))
    # a leaf by its branch on data, which calls a norm that the graph calls too
    net.leaf = Made(lambda m, x: x if x.sum() > 1e9 else m.norm(x), norm=net.norm)
    return net


def written(m, x):
    y = m.first(m.norm(x))
    y[..., :3].relu_()
    return m.second(y)


CASES = {
    "two axes": lambda: Stack(nn.LayerNorm((SIZE, SIZE))),
    "two lengths": lambda: Stack(nn.LayerNorm((4, SIZE))),
    "no affine": lambda: Stack(nn.LayerNorm(SIZE, elementwise_affine=False)),
    "rms": lambda: Stack(nn.RMSNorm(SIZE)),
    "weight norm": lambda: Stack(first=parametrizations.weight_norm(nn.Linear(SIZE, SIZE))),
    "spectral norm": lambda: Stack(first=parametrizations.spectral_norm(nn.Linear(SIZE, SIZE))),
    "orthogonal": lambda: Stack(first=parametrizations.orthogonal(nn.Linear(SIZE, SIZE))),
    "a class of its own": lambda: Stack(first=CosineLinear(SIZE, SIZE)),
    "tied": tied,
    "hooked": hooked,
    "held by a leaf": held,
    "residual": lambda: Stack(forward=lambda m, x: m.first(y := m.norm(x)) + m.second(y) + y),
    "an output": lambda: Stack(forward=lambda m, x: m.first(y := m.norm(x)).sum() + y),
    "convolution": lambda: Stack(forward=lambda m, x: m.first(y := m.norm(x)) + m.other(y.mT).mT),
    "written in place": lambda: Stack(forward=written),
    "functional": lambda: Stack(
        forward=lambda m, x: m.first(F.layer_norm(x, (SIZE,), m.norm.weight, m.norm.bias))
    ),
    "one plus": lambda: Stack(
        forward=lambda m, x: m.first(F.rms_norm(x, (SIZE,)) * (1 + m.norm.weight))
    ),
}


def loud(net):
    """Outliers in the norm, which scales move out of it."""
    weight = net.norm.weight
    if weight is not None:
        with torch.no_grad():
            weight.mul_(torch.linspace(0.1, 40, SIZE).expand_as(weight))
    return net.eval()


def rows(net, count=3):
    shape = getattr(net.norm, "normalized_shape", (SIZE,))
    shape = (4, *shape) if len(shape) > 1 else (4, 5, SIZE)
    return [{"x": torch.randn(shape)} for _ in range(count)]


def run(kind, mg, batches):
    if kind == "awq":
        return passes.awq_transform_pass(mg, {"batches": batches, "weight": FORMAT})
    settings = {"batches": batches, "rescale_other_readers": kind == "rescale"}
    return passes.smoothquant_transform_pass(mg, settings)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(1)
def test_the_float_model_computes_what_it_did(name):
    torch.manual_seed(0)
    net = loud(CASES[name]())
    batches = rows(net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mg = with_metadata(MaseGraph(net, dummy_in=batches[0]))
        for kind in ("smooth", "rescale", "awq"):
            changed, _ = run(kind, mg, batches)
            for batch in batches:
                expected = mg.model(**batch)
                off = (changed.model(**batch) - expected).abs().max() / expected.abs().max()
                assert off < 1e-5, kind


def test_all_channels_of_a_norm_over_two_axes_move():
    torch.manual_seed(0)
    net = loud(Stack(nn.LayerNorm((SIZE, SIZE))))
    mg = with_metadata(MaseGraph(net, dummy_in=rows(net)[0]))
    changed, info = run("smooth", mg, rows(net))
    assert info["smoothed"]["norm"] == ["first"]
    ratio = mg.modules["norm"].weight / changed.modules["norm"].weight
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))
    assert ratio[0].max() / ratio[0].min() > 2


def test_a_fold_that_is_none_is_undone_and_told_once():
    torch.manual_seed(0)
    net = loud(Stack(forward=written))
    mg = with_metadata(MaseGraph(net, dummy_in=rows(net)[0]))
    with pytest.warns(
        UserWarning, match="scales of 1 values were not moved.*'first': 'second' reads"
    ) as w:
        changed, info = run("rescale", mg, rows(net))
    assert len([x for x in w if "were not moved" in str(x.message)]) == 1
    assert "modified in place" in info["skipped"]["second"]
    assert info["smoothed"] == {"norm": ["first"]}
    assert torch.equal(changed.modules["second"].weight, mg.modules["second"].weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_check_sees_a_reader_that_computes_something_else(dtype):
    torch.manual_seed(0)
    net = loud(Stack()).to(dtype)
    batch = {"x": torch.randn(4, SIZE, dtype=dtype)}
    mg = with_metadata(MaseGraph(net, dummy_in=batch))
    (site, _), _ = find_sites(mg, rescale=False)
    scale = torch.full((SIZE,), 2.0, dtype=torch.double)

    def why(reader_ignores_it):
        check, values = FoldCheck(mg, [site]), {}
        values[site.source.args[0]] = batch["x"]
        check.note(0, site.source, values)
        if reader_ignores_it:
            kept = mg.modules["first"].weight.detach().clone()
            hook = lambda module, args: F.linear(args[0], kept, module.bias)  # noqa: E731
            mg.modules["first"].register_forward_hook(lambda m, args, y: hook(m, args))
        changes = fold_changes(mg, site, scale)
        return check.why_undone(site, changes, lambda _: scale, 1)

    with torch.no_grad():
        assert why(False) is None
        weight = mg.modules["first"].weight.clone()
        assert "'first' changes on batch 0" in why(True)
        assert torch.equal(mg.modules["first"].weight, weight)


@pytest.mark.parametrize(("low", "high"), [(1e-4, 3e4), (1e-7, 1e3)])
@pytest.mark.parametrize("strength", [0.0, 1.0])
@pytest.mark.sampled(1)
def test_half_precision_does_not_overflow(low, high, strength):
    torch.manual_seed(0)
    net = Stack().eval()
    net.norm.weight.data = torch.logspace(*torch.tensor([low, high]).log10().tolist(), SIZE)
    net.first.weight.data *= torch.logspace(0, -7, SIZE)
    net, batch = net.half(), {"x": torch.randn(4, SIZE).half()}
    mg = with_metadata(MaseGraph(net, dummy_in=batch))
    settings = {"batches": [batch], "migration_strength": strength}
    changed, info = passes.smoothquant_transform_pass(mg, settings)
    expected = mg.model(**batch)
    assert (changed.model(**batch) - expected).abs().max() < 0.01 * expected.abs().max()
    assert info["smoothed"]


class Reviews(nn.Module):
    """Tokens that are padding reach no answer."""

    def __init__(self, transposed=False):
        super().__init__()
        self.table = nn.Embedding(20, SIZE)
        self.norm = nn.LayerNorm(SIZE)
        self.fc = nn.Linear(SIZE, SIZE)
        self.transposed = transposed

    def forward(self, input_ids, attention_mask):
        x = self.table(input_ids)
        y = self.fc(self.norm(x.transpose(0, 1))).transpose(0, 1) if self.transposed else None
        y = self.fc(self.norm(x)) if y is None else y
        return (y * attention_mask[..., None]).sum(1)


class HiddenReviews(Reviews):
    """The mask is torch's: True, or -inf, where a token is padding."""

    def forward(self, input_ids, src_key_padding_mask):
        return super().forward(input_ids, src_key_padding_mask == 0)


MASKS = {
    "ones": lambda mask: {"attention_mask": mask},
    "hidden": lambda mask: {"src_key_padding_mask": mask == 0},
    "added": lambda mask: {
        "src_key_padding_mask": torch.zeros(2, 5).masked_fill(mask == 0, float("-inf"))
    },
}


@pytest.mark.parametrize("kind", ["smooth", "gradient", "uniform", "wanda"])
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.sampled(1)
def test_padding_tokens_do_not_count(kind, masks, transposed):
    torch.manual_seed(0)
    net = (Reviews if masks == "ones" else HiddenReviews)(transposed).eval()
    ids, mask = torch.randint(1, 19, (2, 5)), torch.ones(2, 5, dtype=torch.long)
    mask[0, 3:] = 0
    masked = MASKS[masks](mask)
    mg = with_metadata(MaseGraph(net, dummy_in={"input_ids": ids, **masked}))
    mg.modules["table"].weight.data[19] = torch.logspace(0, 4, SIZE)

    def weights(padding):
        batches = [{"input_ids": ids.masked_fill(mask == 0, padding), **masked}]
        if kind == "smooth":
            changed, _ = run("smooth", mg, batches)
        elif kind == "wanda":
            rule = {"sparsity": 0.5, "method": "wanda"}
            changed, _ = passes.prune_transform_pass(
                mg, {"weight": rule, "batches": batches, "include": ("fc",)}
            )
        else:
            settings = {"batches": batches, "weight": FORMAT, "row_weights": kind}
            changed, _ = passes.awq_transform_pass(mg, settings)
        return changed.modules["fc"].weight

    assert torch.equal(weights(0), weights(19))
    assert torch.equal(weights(0), weights(7))
    assert not torch.equal(weights(0), mg.modules["fc"].weight)
