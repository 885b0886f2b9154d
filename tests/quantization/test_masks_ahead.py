"""Masks reach back to the scores: no call ahead of a mask takes a scale from what it hides."""

import copy
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import Gemma2Config, Gemma2Model, LlamaConfig, LlamaModel

from chop import MaseGraph, passes
from chop.base.notices import forget_notices
from chop.captured.padding.masks import MASKS_AHEAD
from chop.formats import BlockFP, Integer, Log, MXInt
from chop.nn.quantized import QuantCall, QuantContext, QuantScores
from tests.nn.test_masked_scores import WITHIN_A_TOKEN
from tests.quantization.causality import LENGTH, LOWEST, SIZE, inputs, is_causal
from tests.subcases import subcases

OPERATORS = {"add", "mul", "matmul", "bmm", "softmax", "tanh", "linear", "masked_fill", "where"}


def later(length):
    return torch.ones(length, length).triu(1).bool()


def added(length, fill=LOWEST):
    return torch.zeros(length, length).masked_fill(later(length), fill)


def in_place(q, k, n):
    scores = q @ k.mT
    scores *= 0.5
    scores += added(n)
    return scores


def heads_in_the_batch(q, k, n):
    q, k = q.reshape(-1, n, 8), k.reshape(-1, n, 8)
    return (torch.bmm(q, k.mT) * 0.5).view(-1, 2, n, n).masked_fill(later(n), -1e9)


def written(q, k, n):
    scores = ((q @ k.mT) * 0.5).clone()
    scores[later(n).expand(scores.shape)] = -math.inf
    return scores


def far(n):
    places = torch.arange(n)
    return (places[:, None] - places).abs()


def by_hand(q, k, n):
    """The logarithm of a softmax that is written out, which reads the scores twice."""
    scores = ((q @ k.mT) * 0.5).masked_fill(later(n), -math.inf)
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return (powers / powers.sum(-1, keepdim=True)).log()


SCORES = {
    "masked_fill": lambda q, k, n: ((q @ k.mT) * 0.5).masked_fill(later(n), -math.inf),
    "masked_fill_": lambda q, k, n: ((q @ k.mT) * 0.5).masked_fill_(later(n), -math.inf),
    "where": lambda q, k, n: torch.where(later(n), -1e9, (q @ k.mT) * 0.5),
    "where shown": lambda q, k, n: torch.where(~later(n), 0.5 * (q @ k.mT), LOWEST),
    "method": lambda q, k, n: ((q @ k.mT) * 0.5).where(~later(n), torch.tensor(-1e9)),
    "add": lambda q, k, n: (q @ k.mT) / math.sqrt(8) + added(n),
    "sub": lambda q, k, n: (q @ k.mT) * 0.5 - -added(n),
    "in place": in_place,
    "written": written,
    "by hand": by_hand,
    "integers": lambda q, k, n: (q @ k.mT) * 0.5 + torch.tensor(-0.1) * far(n) + added(n),
    "alibi": lambda q, k, n: (q @ k.mT) * 0.5 + torch.arange(n) * 0.1 + added(n),
    "two masks": lambda q, k, n: (
        ((q @ k.mT) * 0.5)
        .masked_fill(torch.ones(n, n).tril(-6).bool(), -1e9)
        .masked_fill(later(n), -1e9)
    ),
    "dropout": lambda q, k, n: F.dropout((q @ k.mT) * 0.5, 0.0) + added(n),
    "cast": lambda q, k, n: ((q @ k.mT) * 0.5).double() + added(n).double(),
    "view": lambda q, k, n: ((q @ k.mT) * 0.5).view(-1, n, n) + added(n),
    "unsqueeze": lambda q, k, n: (((q @ k.mT) * 0.5).unsqueeze(1) + added(n)).squeeze(1),
    "bmm": heads_in_the_batch,
    "cap": lambda q, k, n: torch.tanh((q @ k.mT) / 5) * 5 + added(n),
    "scaled after": lambda q, k, n: (q @ k.mT + 0.1).masked_fill(later(n), -1e9) * 0.5,
}


class Attention(nn.Module):
    def __init__(self, scores):
        super().__init__()
        torch.manual_seed(0)
        self.scores, self.qkv = scores, nn.Linear(SIZE, 3 * SIZE)
        self.qkv.weight.data *= 3

    def forward(self, x):
        batch, n, _ = x.shape
        q, k, v = self.qkv(x).view(batch, n, 3, 2, -1).permute(2, 0, 3, 1, 4).unbind(0)
        weights = self.scores(q, k, n).softmax(-1).to(x.dtype).view(batch, 2, n, n)
        return x + (weights @ v).transpose(1, 2).reshape(x.shape)


def quantized(model, given, fmt):
    mg = MaseGraph(model.eval(), dummy_in=given)
    found = {mg.operator(node).name for node in mg.nodes} & OPERATORS
    config = {"config": {"data_in": fmt, "weight": fmt, "data_out": fmt}}
    return passes.quantize_transform_pass(mg, {"by": "type", **dict.fromkeys(found, config)})[0]


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.sampled(1)
def test_every_way_to_compute_scores(name):
    x, changed = inputs()
    model = quantized(Attention(SCORES[name]), {"x": x}, MXInt(4)).model
    for mode in (True, False):
        assert is_causal(model.train(mode), x, changed)
    expected = model(x)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), expected)
    x.requires_grad_()
    model(x)[:, :-1].sum().backward()
    assert not x.grad[:, -1].any()


@pytest.fixture(scope="module")
def graph():
    return quantized(Attention(SCORES["alibi"]), {"x": inputs()[0]}, MXInt())


@pytest.mark.long
@subcases("fmt", WITHIN_A_TOKEN, ids=lambda fmt: fmt.label)
def test_every_format(fmt, graph):
    for call in graph.model.modules():
        if isinstance(call, QuantCall):
            every = {operand: fmt for operand, old in call.spec.items() if not old.is_identity}
            call.spec = call.spec.with_quantizers(**every)
    is_causal(graph.model, *inputs())


def test_visible_scores_are_rounded_as_those_of_fewer_keys(graph):
    """The first tokens alone, and beside those that they do not see."""
    fmt = MXInt(4, block_size=LENGTH)
    graph = quantized(Attention(SCORES["add"]), {"x": inputs()[0]}, fmt)
    x, _ = inputs()
    few = graph.model(x[:, :9])
    torch.testing.assert_close(graph.model(x)[:, :9], few, rtol=0, atol=1e-6)


SMALL = {
    "hidden_size": SIZE,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "vocab_size": 50,
    "num_hidden_layers": 2,
    "attn_implementation": "eager",
    "use_cache": False,
}


def tokens(kept=LENGTH):
    ids = torch.randint(1, 50, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(LENGTH) < kept).long().expand(2, -1).contiguous()
    other = torch.where(mask.bool(), ids, ids % 49 + 1)
    return ids, other, mask


def decoder(name):
    torch.manual_seed(0)
    model = (
        LlamaModel(LlamaConfig(**SMALL))
        if name == "llama"
        else Gemma2Model(Gemma2Config(head_dim=8, **SMALL))
    )
    for x in model.parameters():
        x.data *= 12 if x.dim() == 2 else 1  # else scores are nearly zero
    return model


@pytest.mark.parametrize("name", ["llama", "gemma2"])
@pytest.mark.parametrize("fmt", [MXInt(4), BlockFP(6)], ids=lambda fmt: fmt.label)
@pytest.mark.long
def test_eager_decoders(name, fmt):
    ids, _, mask = tokens()
    changed = ids.clone()
    changed[:, -1] = ids[:, -1] % 49 + 1
    mg = quantized(decoder(name), {"input_ids": ids, "attention_mask": mask}, fmt)
    assert sum(MASKS_AHEAD in node.kwargs for node in mg.nodes) >= 4

    def call(given):
        return mg.model(input_ids=given, attention_mask=mask).last_hidden_state

    assert is_causal(call, ids, changed)
    ids, other, shown = tokens(LENGTH - 5)
    found, again = (
        mg.model(input_ids=given, attention_mask=shown).last_hidden_state for given in (ids, other)
    )
    assert torch.equal(found[:, :-5], again[:, :-5])


def test_checkpoints_and_a_second_pass_keep_the_masks(tmp_path):
    x, changed = inputs()
    mg = quantized(Attention(SCORES["where"]), {"x": x}, MXInt(4))
    mg.export(tmp_path / "model")
    loaded = MaseGraph.from_checkpoint(tmp_path / "model")
    assert torch.equal(loaded.model(x), mg.model(x))
    is_causal(loaded.model, x, changed)
    config = {"config": {"data_in": MXInt(8), "weight": MXInt(8), "data_out": MXInt(8)}}
    again, _ = passes.quantize_transform_pass(
        loaded, {"by": "type", "mul": config, "matmul": config}
    )
    assert sum(isinstance(module, QuantScores) for module in again.model.modules()) == 1
    is_causal(again.model, x, changed)


def test_operands_may_be_given_by_name():
    class Named(Attention):
        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            scores = torch.matmul(input=q, other=k.mT).masked_fill(later(x.size(1)), -math.inf)
            return torch.matmul(other=v, input=scores.softmax(-1))

    x, changed = inputs()
    model = quantized(Named(None), {"x": x}, MXInt(4)).model
    kinds = [type(part) for part in model.modules()]
    assert kinds.count(QuantScores) == kinds.count(QuantContext) == 1
    assert is_causal(model, x, changed)


def test_a_mask_made_of_the_scores_is_named():
    """It cannot be known before they are."""

    def scores(q, k, n):
        x = (q @ k.mT) * 0.5
        return x.masked_fill(torch.ones_like(x).triu(1) > 0, -1e9)

    with pytest.warns(UserWarning, match="computes scores that .* hides later"):
        quantized(Attention(scores), {"x": inputs()[0]}, MXInt(4))


def test_scores_that_are_mixed_before_their_mask_are_named():
    def scores(q, k, n):
        mixed = torch.einsum("bhij,hg->bgij", q @ k.mT, torch.tensor([[1.0, 0.2], [0.3, 1.0]]))
        return (mixed * 0.5).masked_fill(later(n), -1e9)

    with pytest.warns(UserWarning, match="that 'einsum' reads unmasked"):
        quantized(Attention(scores), {"x": inputs()[0]}, MXInt(4))


class Other(nn.Module):
    """A sum that is read twice, a product that no softmax reads, and zeros at padding."""

    def forward(self, x, kept):
        y = x + 1
        z = (y * 2).masked_fill(~kept[..., None], 0.0)
        return (z @ z.mT) * 0.5, torch.softmax(y, -1)


def test_other_arithmetic_has_no_masks():
    x, kept = torch.randn(2, 4, 4), torch.ones(2, 4, dtype=torch.bool)
    mg = quantized(Other(), {"x": x, "kept": kept}, Integer(8, 4))
    assert not any(MASKS_AHEAD in node.kwargs for node in mg.nodes)


@pytest.mark.parametrize("form", ["module", "function"])
def test_log_softmax_is_quantized_as_softmax_is(form):
    fmt = MXInt(4, block_size=8)

    class Logs(nn.Module):
        def __init__(self):
            super().__init__()
            self.logs = nn.LogSoftmax(-1)

        def forward(self, x):
            hidden = x.masked_fill(later(x.size(-1)), -math.inf)
            return self.logs(hidden) if form == "module" else F.log_softmax(hidden, -1)

    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    mg = MaseGraph(Logs().eval(), dummy_in={"x": x})
    rules = {"by": "type", "log_softmax": {"config": {"data_in": fmt}}}
    model = passes.quantize_transform_pass(mg, rules)[0].model
    rounded = torch.stack(
        [fmt.round(torch.where(row, 0.0, y)) for row, y in zip(later(8), x, strict=True)]
    )
    expected = F.log_softmax(rounded.masked_fill(later(8), -math.inf), -1)
    assert torch.equal(model(x), expected)
    changed = torch.cat([x[:, :-1], x[:, -1:] * 99], -1)
    assert torch.equal(model(changed)[:-1], model(x)[:-1])


def weights(scores, mask):
    return scores.masked_fill(mask, -math.inf).softmax(-1)


def two_windows(scores, n):
    near = torch.ones(n, n).tril(-5).bool()
    return weights(scores, later(n)) - 0.5 * weights(scores, later(n) | near)


def written_out(scores, n):
    scores = scores + added(n)
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def read_twice(scores, n):
    scores = scores.masked_fill(later(n), -1e9)
    return scores.softmax(-1) + 0.5 * (scores * 2).softmax(-1)


def largest(scores, n):
    scores = scores.masked_fill(later(n), -1e9)
    fourth = scores.topk(4, -1).values[..., -1:]
    return scores.masked_fill(scores < fourth, -1e9).softmax(-1)


SHARED = {
    "linear attention": lambda s, n: s.masked_fill(later(n), 0.0),
    "gates": lambda s, n: torch.sigmoid(s + added(n)),
    "logarithms": lambda s, n: F.log_softmax(s + added(n), -1).exp(),
    "the largest alone": largest,
    "one mask": lambda s, n: weights(s, later(n)) + weights(s * 2, later(n)),
    "two windows": two_windows,
    "added and filled": lambda s, n: weights(s, later(n)) + (s + added(n)).softmax(-1),
    "a softmax written out": written_out,
    "two softmaxes": read_twice,
}


class Shared(nn.Module):
    """Scores that several calls read, and what else is made of them."""

    def __init__(self, weigh, other=None):
        super().__init__()
        torch.manual_seed(0)
        self.weigh, self.other, self.qkv = weigh, other, nn.Linear(SIZE, 3 * SIZE)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.mT) * 0.5
        y = x + self.weigh(scores, x.size(1)) @ v
        return y if self.other is None else (y, self.other(scores))


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.sampled(1)
@pytest.mark.parametrize("fmt", [MXInt(4), Log(8)], ids=lambda fmt: fmt.label)
def test_scores_that_several_read_have_what_all_masks_hide(name, fmt):
    x, changed = inputs()
    mg = quantized(Shared(SHARED[name]), {"x": x}, fmt)
    assert sum(MASKS_AHEAD in node.kwargs for node in mg.nodes) >= 2
    for mode in (True, False):
        assert is_causal(mg.model.train(mode), x, changed)
    again = pickle.loads(pickle.dumps(mg.model))
    assert torch.equal(again(x), mg.model(x))


READERS = {
    "returned": lambda scores: scores,
    "logged": lambda scores: scores.abs().amax(),
    "a softmax of all": lambda scores: scores.softmax(-1),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", READERS)
def test_a_reader_of_all_scores_is_named_unless_no_scale_follows_them(name, recwarn):
    forget_notices()
    model, x = Shared(SHARED["one mask"], READERS[name]), inputs()[0]
    mg = MaseGraph(model.eval(), dummy_in={"x": x})
    reader = {"returned": "output", "logged": "amax", "a softmax of all": "softmax_2"}[name]
    for fmt in (MXInt(4), Integer(8, 4)):
        config = {"config": {"data_in": fmt, "data_out": fmt}}
        found, _ = passes.quantize_transform_pass(mg.copy(), {"by": "type", "mul": config})
        assert not any(MASKS_AHEAD in node.kwargs for node in found.nodes if node.name == "mul")
        texts = [str(warning.message) for warning in recwarn.list]
        assert len(texts) == 1  # of the format with scales alone
        assert "'mul' computes scores that 'bool_1' hides later" in texts[0]
        assert f"'{reader}" in texts[0]


def test_the_masks_that_can_be_known_are_handed_on():
    """One of two comes too late, and is named."""

    def weigh(scores, n):
        scores = scores.masked_fill(torch.ones(n, n).tril(-6).bool(), -1e9)
        return scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -1e9).softmax(-1)

    forget_notices()
    with pytest.warns(UserWarning, match="computes scores that 'gt' hides later and that can"):
        mg = quantized(Shared(weigh), {"x": inputs()[0]}, MXInt(4))
    (node,) = (node for node in mg.nodes if node.name == "mul")
    assert [(kind, mask.name) for kind, mask, _ in node.kwargs[MASKS_AHEAD]] == [
        ("hidden", "bool_1")
    ]


def test_a_mask_written_by_another_name_is_named():
    class Writes(Shared):
        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            scores = (q @ k.mT) * 0.5
            scores.view(-1, x.size(1), x.size(1)).masked_fill_(later(x.size(1)), -1e9)
            return scores.softmax(-1) @ v

    forget_notices()
    with pytest.warns(UserWarning, match="'softmax' reads unmasked"):
        quantized(Writes(None), {"x": inputs()[0]}, MXInt(4))
