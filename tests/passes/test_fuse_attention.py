import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop import MaseGraph, passes
from chop.captured.runtime import ByMode
from chop.nn.quantized import QuantScaledDotProductAttention

from .conftest import with_metadata

FUSED = "scaled_dot_product_attention"
INTEGER = {"name": "integer", "width": 8, "frac_width": 5}


class Attention(nn.Module):
    """Written out by hand; `weigh` makes attention weights of (module, queries, keys)."""

    def __init__(self, weigh, heads=2, head_size=8, dropout=0.0):
        super().__init__()
        self.weigh, self.heads, self.head_size = weigh, heads, head_size
        width = heads * head_size
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dropout, self.softmax = nn.Dropout(dropout), nn.Softmax(-1)
        self.register_buffer("triangle", torch.ones(1, 1, 32, 32).tril(), persistent=False)
        self.register_buffer("bars", torch.full((32, 32), -math.inf).triu(1), persistent=False)

    def forward(self, x):
        heads = x.size(0), x.size(1), self.heads, self.head_size
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        y = self.weigh(self, q, k) @ v
        return self.out(y.transpose(1, 2).flatten(2))


def scores(q, k):
    return q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))


def hide(q, k, fill=-math.inf):
    n = q.size(-2)
    return scores(q, k).masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), fill)


def chosen(q, k):
    n = q.size(-2)
    return torch.where(torch.ones(n, n).triu(1) != 0, -1e9, scores(q, k))


def sloped(q, k):
    """A bias that falls with the distance."""
    at = torch.arange(q.size(-2))
    return scores(q, k) + (at[None, :] - at[:, None]).abs() * -0.25


def two_masks(q, k):
    at = torch.arange(q.size(-2))
    causal = scores(q, k).masked_fill(at[None, :] > at[:, None], -math.inf)
    return causal.masked_fill(at == 1, -math.inf)


def both_kinds(q, k):
    return sloped(q, k).masked_fill(torch.arange(q.size(-2)) == 1, -1e30)


def softmax(made):
    return lambda m, q, k: F.softmax(made(q, k), -1)


# name: (weights, options that the call must have)
CASES = {
    "plain": (lambda m, q, k: m.softmax(scores(q, k)), {}),
    "unscaled": (lambda m, q, k: (q @ k.mT).softmax(-1), {"scale": 1.0}),
    "scaled queries": (lambda m, q, k: (q * 0.5 @ k.transpose(2, 3)).softmax(3), {"scale": 1.0}),
    "scaled twice": (
        lambda m, q, k: torch.softmax(2 * torch.matmul(q, k.transpose(3, 2)) / 8, dim=-1),
        {"scale": 0.25},
    ),
    "keys permuted": (
        lambda m, q, k: (torch.matmul(q, k.permute(0, 1, 3, 2)) * 0.3).softmax(-1),
        {"scale": 0.3},
    ),
    "buffer": (
        lambda m, q, k: F.softmax(
            scores(q, k).masked_fill(
                m.triangle[:, :, : q.size(2), : q.size(2)] == 0, float("-inf")
            ),
            dim=-1,
        ),
        {"is_causal": True},
    ),
    "added buffer": (
        lambda m, q, k: (scores(q, k) + m.bars[: q.size(2), : q.size(2)]).softmax(-1),
        {"is_causal": True},
    ),
    "triangle": (softmax(hide), {"is_causal": True}),
    "finite fill": (softmax(lambda q, k: hide(q, k, -3e38)), {"is_causal": True}),
    "where": (softmax(chosen), {"is_causal": True}),
    "added triangle": (
        softmax(lambda q, k: torch.full((q.size(2), q.size(2)), -math.inf).triu(1) + scores(q, k)),
        {"is_causal": True},
    ),
    "bias": (softmax(sloped), {"attn_mask"}),
    "two masks": (softmax(two_masks), {"attn_mask"}),
    "both kinds": (softmax(both_kinds), {"attn_mask"}),
    "not quite causal": (
        softmax(
            lambda q, k: scores(q, k).masked_fill(
                torch.ones(q.size(2), q.size(2)).triu(2) != 0, -math.inf
            )
        ),
        {"attn_mask"},
    ),
}


def padded_left(q, k):
    """Queries 0 and 1 see no key: a fill that is no infinity then weighs all keys alike."""
    return hide(q, k, -3e38).masked_fill(torch.arange(q.size(-2)) < 2, -3e38)


def hide_by_names(q, k):
    n = q.size(-2)
    above = torch.eq(torch.ones(size=(n, n)).tril(), other=0)
    return torch.masked_fill(input=scores(q, k), mask=above, value=-math.inf)


def bars_by_names(q, k):
    n = q.size(-2)
    return scores(q, k) + torch.triu(torch.full(size=(n, n), fill_value=-math.inf), diagonal=1)


CASES |= {
    "by names": (softmax(hide_by_names), {"is_causal": True}),
    "added by names": (softmax(bars_by_names), {"is_causal": True}),
    "scaled to nothing": (lambda m, q, k: (q @ k.mT * 0.0).softmax(-1), {"scale": 0.0}),
}


def fused_calls(mg):
    return [node for node in mg.nodes if getattr(node.target, "__name__", "") == FUSED]


def raised(model, *shape):
    torch.manual_seed(3)
    return with_metadata(MaseGraph(model, dummy_in={"x": torch.randn(*shape)}))


def gradients(model, x):
    x = x.clone().requires_grad_()
    model.zero_grad()
    model(x).square().sum().backward()
    return [x.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(1)
def test_values_and_gradients_stay_at_other_sizes(case):
    weigh, options = CASES[case]
    mg = raised(Attention(weigh).eval(), 2, 10, 16)
    fused, info = passes.fuse_attention_transform_pass(mg, {})
    assert len(info["fused"]) == 1 and info["skipped"] == {}
    (call,) = fused_calls(fused)
    if isinstance(options, dict):
        assert dict(call.kwargs) == pytest.approx(options)
    else:
        assert set(call.kwargs) == options
    left = {fused.operator(node).name for node in fused.nodes}
    assert not left & {"softmax", "matmul", "masked_fill", "dropout", "div"}
    assert call.kwargs.get("attn_mask") or not left & {"tril", "triu", "ones", "full", "get_attr"}
    for shape in ((2, 10, 16), (1, 2, 16), (3, 31, 16)):
        x = torch.randn(shape)
        torch.testing.assert_close(fused.model(x), mg.model(x), atol=1e-5, rtol=1e-5)
    x = torch.randn(3, 7, 16)
    for ours, naive in zip(gradients(fused.model, x), gradients(mg.model, x), strict=True):
        torch.testing.assert_close(ours, naive, atol=1e-4, rtol=1e-4)
    call_info = call.meta["mase"].common
    assert call_info.mase_op == FUSED
    assert call_info.results["data_out_0"].shape == (2, 2, 10, 8)


def test_rows_where_finite_fills_hide_every_key_stay():
    mg = raised(Attention(softmax(padded_left)).eval(), 2, 10, 16)
    fused, info = passes.fuse_attention_transform_pass(mg, {})
    assert len(info["fused"]) == 1
    x = torch.randn(3, 7, 16)
    y = fused.model(x)
    assert y.isfinite().all()
    torch.testing.assert_close(y, mg.model(x), atol=1e-5, rtol=1e-5)


class Calls(nn.Module):
    """Calls a function of itself and its input."""

    def __init__(self, function):
        super().__init__()
        self.function, self.drop, self.gate = function, nn.Dropout1d(0.5), nn.Linear(16, 16)

    def forward(self, x):
        return self.function(self, x)


def product(x):
    return x @ x.transpose(1, 2)


def weak_fill(m, x):
    return product(x).masked_fill(torch.arange(x.size(1)) == 1, -5.0).softmax(-1) @ x


def masked_first(m, x):
    return ((product(x) + torch.arange(x.size(1)).float()) * 0.5).softmax(-1) @ x


LEFT = [
    (lambda m, x: ((w := product(x).softmax(-1)) @ x, w), "its weights are read elsewhere too"),
    (lambda m, x: ((s := product(x)).softmax(-1) @ x, s), "'matmul' is read elsewhere too"),
    (lambda m, x: product(x).softmax(1) @ x, "its softmax is not over the last axis"),
    (masked_first, "its scores are masked before they are scaled"),
    (weak_fill, "its scores are filled with -5.0, which may not mask them"),
    (lambda m, x: m.drop(product(x).softmax(-1)) @ x, "its dropout drops whole channels"),
    (lambda m, x: (w := product(x).softmax(-1)) @ w, "its values equal its weights"),
    # a softmax that is no attention: its weights come from a linear layer
    (lambda m, x: m.gate(x).softmax(-1) @ x.transpose(1, 2), None),
]


@pytest.mark.parametrize("function, reason", LEFT)
@pytest.mark.sampled(1)
def test_what_would_change_the_model_is_left_alone(function, reason):
    mg = raised(Calls(function).eval(), 2, 10, 16)
    fused, info = passes.fuse_attention_transform_pass(mg, {})
    assert info["fused"] == []
    assert list(info["skipped"].values()) == ([reason] if reason else [])
    assert mg.diff(fused) == []


class Stacked(nn.Module):
    """Attention to the results of attention, with nothing between them."""

    def forward(self, x):
        for _ in range(3):
            x = F.dropout((x @ x.transpose(1, 2)).softmax(-1), 0.5, self.training) @ x
        return x


@pytest.mark.long
def test_attention_may_work_on_the_result_of_attention(recwarn):
    mg = raised(Stacked().eval(), 2, 10, 16)
    fused, info = passes.fuse_attention_transform_pass(mg, {})
    assert len(info["fused"]) == len(fused_calls(fused)) == 3
    x = torch.randn(3, 7, 16)
    torch.testing.assert_close(fused.model(x), mg.model(x), atol=1e-5, rtol=1e-5)
    assert not [w for w in recwarn if "erased" in str(w.message)]


def test_quantized_steps_and_hooks_stay():
    mg = raised(Attention(CASES["plain"][0]).eval(), 2, 10, 16)
    config = {"by": "type", "softmax": {"config": {"data_in": INTEGER}}}
    quantized, _ = passes.quantize_transform_pass(mg, config)
    fused, info = passes.fuse_attention_transform_pass(quantized, {})
    assert info == {"fused": [], "skipped": {"softmax": "'softmax' is quantized"}}
    assert quantized.diff(fused) == []
    seen = []
    mg.model.softmax.register_forward_hook(lambda module, inputs, y: seen.append(y.shape))
    fused, info = passes.fuse_attention_transform_pass(mg, {}, inplace=True)
    assert info == {"fused": [], "skipped": {"softmax": "'softmax' has hooks"}}
    fused.model(torch.randn(2, 5, 16))
    assert seen == [(2, 2, 5, 5)]


def test_dropout_follows_the_mode_and_has_the_right_share():
    def weigh(m, q, k):
        return m.dropout(scores(q, k).softmax(-1))

    mg = raised(Attention(weigh, dropout=0.25), 2, 10, 16)
    fused, _ = passes.fuse_attention_transform_pass(mg, {})
    (switch,) = [m for m in fused.model.modules() if isinstance(m, ByMode)]
    assert switch.training and switch() == 0.25
    x = torch.randn(64, 20, 16)
    with torch.no_grad():
        one, other = fused.model(x), fused.model(x)
        assert not torch.equal(one, other)
        fused.model.eval(), mg.model.eval()
        exact = mg.model(x)
        torch.testing.assert_close(fused.model(x), exact, atol=1e-5, rtol=1e-5)
        fused.model.train(), mg.model.train()
        ours = torch.stack([fused.model(x) for _ in range(20)]) - exact
        theirs = torch.stack([mg.model(x) for _ in range(20)]) - exact
    assert ours.mean().abs() < 2e-3
    assert ours.std() == pytest.approx(theirs.std().item(), rel=0.05)


def configs():
    from transformers import BertConfig, GPT2Config, T5Config

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {**small, "vocab_size": 100, "intermediate_size": 64, "max_position_embeddings": 64}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    return {
        "bert": (BertConfig(**text), "SequenceClassification", 2),
        "gpt2": (
            GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=64, **ends),
            "CausalLM",
            2,
        ),
        "t5": (
            T5Config(
                vocab_size=100,
                d_model=32,
                d_kv=8,
                d_ff=64,
                num_layers=1,
                num_decoder_layers=2,
                num_heads=4,
                decoder_start_token_id=0,
            ),
            "Seq2SeqLM",
            5,
        ),
    }


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
@pytest.mark.sampled(1)
def test_eager_models_of_transformers_fuse_every_layer(name):
    import transformers
    from transformers.pytorch_utils import Conv1D

    config, task, layers = configs()[name]
    config._attn_implementation = "eager"
    model = getattr(transformers, f"AutoModelFor{task}").from_config(config).eval()
    names = ["input_ids", "attention_mask"] + ["decoder_input_ids"] * (name == "t5")
    mg = with_metadata(MaseGraph(model, hf_input_names=names))
    fused, info = passes.fuse_attention_transform_pass(mg, {})
    assert len(info["fused"]) == layers and info["skipped"] == {}
    assert "softmax" not in {fused.operator(node).name for node in fused.nodes}
    ids = torch.randint(3, 100, (3, 21))
    mask = torch.ones_like(ids)
    mask[1, 15:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids}
    given = {key: inputs[key] for key in names}
    expected, got = model(**given).logits, fused.model(**given).logits
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
    loss = SimpleNamespace(ours=got.square().mean(), naive=expected.square().mean())
    parameters = [dict(m.named_parameters()) for m in (fused.model, model)]
    shared = sorted(parameters[0].keys() & parameters[1].keys())
    ours = torch.autograd.grad(loss.ours, [parameters[0][k] for k in shared], allow_unused=True)
    naive = torch.autograd.grad(loss.naive, [parameters[1][k] for k in shared], allow_unused=True)
    assert len(shared) > 20
    # The graph has the weight of a Conv1D as a linear layer has it.
    turned = {f"{path}.weight" for path, part in model.named_modules() if isinstance(part, Conv1D)}
    for key, one, other in zip(shared, ours, naive, strict=True):
        if other is not None:
            other = other.T if key in turned else other
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-3, msg=key)


def test_fused_attention_is_quantized_like_any_other_and_is_exported(tmp_path):
    mg = raised(Attention(CASES["triangle"][0], dropout=0.1).eval(), 2, 10, 16)
    fused, _ = passes.fuse_attention_transform_pass(mg, {})
    x = torch.randn(2, 9, 16)
    fused.export(tmp_path / "fused")
    again = MaseGraph.from_checkpoint(tmp_path / "fused")
    assert torch.equal(again.model(x), fused.model(x))
    config = {"by": "type", FUSED: {"config": {"data_in": INTEGER, "weight": INTEGER}}}
    quantized, info = passes.quantize_transform_pass(fused, config)
    assert info["quantized"] == 1
    assert any(isinstance(m, QuantScaledDotProductAttention) for m in quantized.model.modules())
    torch.testing.assert_close(quantized.model(x), mg.model(x), atol=0.1, rtol=0.1)


def test_bfloat16_scores_may_be_summed_in_float32():
    def weigh(m, q, k):
        return F.softmax(sloped(q, k), dim=-1, dtype=torch.float32).to(q.dtype)

    model = Attention(weigh).eval().bfloat16()
    mg = with_metadata(MaseGraph(model, dummy_in={"x": torch.randn(2, 10, 16).bfloat16()}))
    fused, info = passes.fuse_attention_transform_pass(mg, {})
    assert len(info["fused"]) == 1
    x = torch.randn(2, 12, 16).bfloat16()
    assert fused.model(x).dtype == torch.bfloat16
    torch.testing.assert_close(fused.model(x), mg.model(x), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("cut", [torch.Tensor.view, torch.reshape, torch.Tensor.reshape])
@pytest.mark.parametrize(("width", "call"), [(20, {"attn_mask"}), (10, {"is_causal"})])
@pytest.mark.sampled(1)
def test_a_triangle_whose_rows_are_cut_is_none(cut, width, call):
    def weigh(m, q, k):
        lower = cut(torch.ones(width, width).tril(), (width**2 // 100, 10, 10))
        return scores(q, k).masked_fill(lower == 0, -1e9).softmax(-1)

    mg = raised(Attention(weigh, heads=4, head_size=4).eval(), 2, 10, 16)
    fused, info = passes.fuse_attention_transform_pass(mg, {})
    assert len(info["fused"]) == 1 and call <= set(fused_calls(fused)[0].kwargs)
    x = torch.randn(2, 10, 16)
    torch.testing.assert_close(fused.model(x), mg.model(x))
