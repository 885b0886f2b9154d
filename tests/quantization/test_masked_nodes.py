"""Causality: no answer of a token changes with a later one, however a model hides it."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop import MaseGraph, passes
from chop.formats import Binary, Integer, Log, MXInt, ScaleInteger
from chop.nn.quantized import QuantCall
from chop.quantization.masked_nodes import masked_nodes
from tests.networks import Made
from tests.quantization.causality import LOWEST, SIZE, inputs, is_causal

HEADS = 2


def later(x):
    return torch.ones(x.size(-1), x.size(-1), dtype=torch.bool).triu(1)


def added(x, fill):
    return torch.zeros(x.shape[-2:]).masked_fill(later(x), fill)


def in_place(x, fill):
    x += added(x, fill)
    return x


def window(x, fill):
    near = torch.ones(x.shape[-2:]).triu(-5).bool()
    return x.masked_fill(later(x) | ~near, fill)


def with_biases(x, fill):
    """ALiBi: a distance to each key, and a mask, in one."""
    places = torch.arange(x.size(-1))
    return x + (-0.5 * (places[:, None] - places).abs() + added(x, fill))


HIDES = {
    "masked_fill": lambda x, fill: x.masked_fill(later(x), fill),
    "where": lambda x, fill: torch.where(later(x), fill, x),
    "add": lambda x, fill: x + added(x, fill),
    "in place": in_place,
    "sub": lambda x, fill: x - -added(x, fill),
    "scaled after": lambda x, fill: x.masked_fill(later(x), fill) * x.new_tensor(0.5),
    "two masks": lambda x, fill: x + added(x, fill) + added(x, fill).flip(0).tril(),
    "window": window,
    "biases": with_biases,
}
SOFTMAXES = {
    "method": lambda x: x.softmax(-1),
    "torch": lambda x: torch.softmax(x, dim=-1),
    "function": lambda x: F.softmax(x, dim=-1, dtype=torch.float32),
    "module": nn.Softmax(dim=-1),
    "gate": torch.sigmoid,
    "logarithm": lambda x: F.log_softmax(x, -1).exp(),
    "by hand": lambda x: (x - x.amax(-1, True)).exp() / (x - x.amax(-1, True)).exp().sum(-1, True),
    "hidden twice": lambda x: x.softmax(-1).masked_fill(later(x), 0.0),
}


class Attention(nn.Module):
    def __init__(self, hide, fill, softmax=SOFTMAXES["method"]):
        super().__init__()
        torch.manual_seed(0)
        self.hide, self.fill, self.softmax = hide, fill, softmax
        self.qkv, self.out = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        scores = self.dropout(self.hide(q @ k.mT, self.fill))
        y = (self.softmax(scores) @ v).transpose(1, 2).reshape(x.shape)
        return x + self.out(y)


@pytest.fixture(name="inputs")
def _inputs():
    return inputs()


def quantized(model, x, fmt, **more):
    mg = MaseGraph(model.eval(), dummy_in={"x": x})
    names = {mg.operator(node).name for node in mg.nodes} & {"softmax", "sigmoid", "add"}
    names |= {"mul"} if model.hide is HIDES["scaled after"] else set()
    names |= {"sub"} if model.hide is HIDES["sub"] else set()
    config = {"config": {"data_in": fmt, **more}}
    return passes.quantize_transform_pass(mg, {"by": "type", **dict.fromkeys(names, config)})[0]


def assert_causal(model, x, changed):
    for mode in (False, True):
        model.train(mode)
        assert is_causal(model, x, changed)


@pytest.mark.parametrize("hide", HIDES)
@pytest.mark.parametrize("fill", [-math.inf, LOWEST, -1e9], ids=str)
@pytest.mark.sampled(1)
def test_every_way_to_hide(hide, fill, inputs):
    mg = quantized(Attention(HIDES[hide], fill), inputs[0], MXInt())
    assert_causal(mg.model, *inputs)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("softmax", SOFTMAXES)
def test_every_softmax(softmax, inputs):
    model = Attention(HIDES["add"], LOWEST, SOFTMAXES[softmax])
    assert_causal(quantized(model, inputs[0], MXInt(4), data_out=Binary()).model, *inputs)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fmt", [Integer(8, "auto"), ScaleInteger(8)], ids=lambda fmt: fmt.label)
@pytest.mark.parametrize("fill", [-math.inf, LOWEST], ids=str)
@pytest.mark.filterwarnings("error")
def test_calibrated_scales_follow_visible_scores(fmt, fill, inputs):
    x, changed = inputs
    mg = quantized(Attention(HIDES["add"], fill), x, fmt)
    mg, _ = passes.calibrate_transform_pass(mg, {"batches": [{"x": x}], "static_scales": True})
    for call in (m for m in mg.model.modules() if isinstance(m, QuantCall)):
        chosen = call.spec.data_in
        step = chosen.scales[0] if isinstance(chosen, ScaleInteger) else 2.0**-chosen.frac_width
        assert step < 0.1
    assert_causal(mg.model, x, changed)


def test_a_checkpoint_and_a_copy_hide_too(inputs, tmp_path):
    mg = quantized(Attention(HIDES["add"], LOWEST), inputs[0], MXInt())
    mg.export(tmp_path / "model")
    loaded = MaseGraph.from_checkpoint(tmp_path / "model")
    assert_causal(loaded.model, *inputs)
    assert_causal(mg.copy().model, *inputs)
    again, _ = passes.quantize_transform_pass(
        loaded, {"by": "type", "add": {"config": {"data_in": MXInt(4)}}}
    )
    assert_causal(again.model, *inputs)


class Padded(nn.Module):
    """Keys that an input hides, by arithmetic that makes the mask."""

    def forward(self, x, kept):
        hidden = (1.0 - kept[:, None, :]) * LOWEST
        return torch.softmax(x @ x.mT + hidden, -1)


def test_masks_that_arithmetic_makes_are_not_rounded():
    x = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))
    kept = torch.ones(2, 6)
    kept[:, 4:] = 0
    mg = MaseGraph(Padded(), dummy_in={"x": x, "kept": kept})
    fmt = Integer(8, 4)
    config = {"config": {"data_in": fmt, "data_out": fmt}}
    rules = {"by": "type", **dict.fromkeys(("sub", "mul", "add", "softmax"), config)}
    mg, _ = passes.quantize_transform_pass(mg, rules)
    for _ in range(2):
        found = mg.model(x=x, kept=kept)
        assert not found[..., 4:].any()
        scores = fmt.round(x @ x.mT)[..., :4]
        assert torch.equal(found[..., :4], fmt.round(torch.softmax(scores, -1)))


MASKS = {
    "compared": lambda x, see: x.masked_fill(see * see.mT == 0, LOWEST),
    "cast": lambda x, see: torch.where((see * see.mT).bool(), x, -math.inf),
    "scaled": lambda x, see: x + (1 - see * see.mT) * -1e4,
    "method": lambda x, see: x - see.mul(see.mT).sub(1).mul(LOWEST),
    "baddbmm": lambda x, see: torch.baddbmm((1 - see * see.mT) * LOWEST, x, torch.eye(6)[None]),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("fmt", [Log(6, 15), Integer(4, 4), Binary()], ids=lambda fmt: fmt.label)
def test_arithmetic_that_only_makes_masks_is_exact(mask, fmt):
    """In formats that lack 0 or 1, too, which would hide other tokens."""

    class Masked(nn.Module):
        def forward(self, x, see):
            return torch.softmax(MASKS[mask](x, see), -1)

    see = torch.ones(1, 6, 1)
    see[:, 4:] = 0
    x = torch.randn(1, 6, 6, generator=torch.Generator().manual_seed(0))
    mg = MaseGraph(Masked(), dummy_in={"x": x, "see": see})
    config = {"config": {"data_in": fmt}}
    present = {mg.operator(node).name for node in mg.nodes} & {"mul", "sub"}
    quantized, _ = passes.quantize_transform_pass(
        mg, {"by": "type", **dict.fromkeys(present, config)}
    )
    hidden = quantized.model(x, see)[0, :4, 4:]
    assert not hidden.any()
    if mask != "method":  # whose last operator computes scores
        assert torch.equal(quantized.model(x, see)[:, :4], mg.model(x, see)[:, :4])


def test_positions_are_exact():
    """Buckets of distances, as T5 has them: a rounding would look up another row."""

    def buckets(m, x):
        far = torch.arange(x.size(0))
        return x * m.table((torch.log(far.float() / 4) / 1.5 * 4.0 + 0.5).long().clamp(0, 7))

    net = Made(buckets, table=nn.Embedding(8, 3))
    mg = MaseGraph(net, dummy_in={"x": torch.randn(20, 3)})
    config = {"config": {"data_in": MXInt(4)}}
    rules = {"by": "type", "add": config, "mul": config}
    quantized, _ = passes.quantize_transform_pass(mg, rules)
    calls = [type(module).__name__ for module in quantized.model.modules()]
    assert calls.count("QuantCall") == 1  # the product that is an answer
    x = torch.ones(20, 3)
    rows = quantized.model(x) != 0
    assert torch.equal(rows, mg.model(x) != 0)


class Residual(nn.Module):
    """Sums of activations, and a head; only one sum has scores."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, bias):
        x = x + self.inner(x)
        x = x * self.outer(x)
        weights = torch.softmax(x @ x.mT / 2 + bias, -1)
        return torch.softmax(self.head(weights @ x), -1)


def test_only_scores_can_be_masked():
    """Activations are rounded whatever their size, and cost nothing more."""
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    mg = MaseGraph(Residual(), dummy_in={"x": x, "bias": torch.zeros(5, 5)})
    found = [mg.operator(node).name for node in mg.nodes if node in masked_nodes(mg)]
    assert found == ["add", "softmax"]
    names = ("add", "softmax", "mul")
    config = {"config": {"data_in": {"name": "integer", "width": 8, "frac_width": 4}}}
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", **dict.fromkeys(names, config)})
    calls = {name: m.meets_masks for name, m in mg.modules.items() if isinstance(m, QuantCall)}
    assert sorted(calls.values()) == [False, False, False, True, True]
