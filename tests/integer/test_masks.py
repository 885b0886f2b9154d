"""Proofs of attention masks, and their refusals."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.formats import Integer, MXInt
from chop.integer.folding import fold
from chop.integer.masks import proven_mask
from chop.nn.integer.mask import KeptKeys

KEYS = 6


def key_mask(kept):
    return kept.bool()[:, None, None, :]


def causal(kept):
    return torch.ones(KEYS, KEYS, dtype=torch.bool).tril()


def added(kept):
    return (1 - key_mask(kept).float()) * torch.finfo(torch.float32).min


MASKS = {
    "keys": (key_mask, True, False),
    "added": (added, True, False),
    "causal": (causal, False, True),
    "causal keys": (lambda kept: key_mask(kept) & causal(kept), True, True),
    "all": (lambda kept: torch.ones(KEYS, KEYS, dtype=torch.bool), False, False),
}
FOREIGN = {
    "zero keeps": lambda kept: ~key_mask(kept),
    "at least two": lambda kept: (kept >= 2)[:, None, None, :],
    "window": lambda kept: causal(kept) & torch.ones(KEYS, KEYS, dtype=torch.bool).triu(-2),
    "first key always": lambda kept: key_mask(kept) | (torch.arange(KEYS) == 0),
    "next key": lambda kept: key_mask(kept.roll(1, 1)),
    "bias": lambda kept: key_mask(kept).float() * 0.5,
    "few more": lambda kept: key_mask(kept) & (kept.sum(1) > 1)[:, None, None, None],
}


class Attention(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.mask = mask
        self.proj = nn.Linear(8, 8)

    def forward(self, x, kept):
        heads = self.proj(x).view(x.shape[0], KEYS, 2, 4).transpose(1, 2)
        mask = self.mask(kept)
        return F.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)


def graph(mask):
    torch.manual_seed(0)
    inputs = {"x": torch.randn(3, KEYS, 8), "kept": torch.ones(3, KEYS, dtype=torch.int64)}
    inputs["kept"][1, 4:] = 0
    mg = MaseGraph(Attention(mask).eval(), dummy_in=inputs)
    mg, _ = passes.add_common_metadata_analysis_pass(mg, {"dummy_in": inputs})
    config = {"config": {"name": "integer", "width": 8, "frac_width": 5}}
    rules = {"by": "type", "linear": config, "scaled_dot_product_attention": config}
    return passes.quantize_transform_pass(mg, rules)[0], inputs


def mask_node(mg):
    (attention,) = (node for node in mg.nodes if "attn_mask" in node.kwargs)
    return attention.kwargs["attn_mask"]


@pytest.mark.parametrize("name", list(MASKS))
@pytest.mark.sampled(1)
def test_masks_are_proven_and_lowered(name):
    mask, follows_input, is_causal = MASKS[name]
    mg, inputs = graph(mask)
    proven = proven_mask(mg, mask_node(mg), fold(mg, inputs))
    assert (proven.source is not None, proven.is_causal) == (follows_input, is_causal)
    assert proven.source is None or proven.source.target == "kept"
    integer, info = passes.lower_to_integer_transform_pass(mg, {"batches": [inputs]})
    assert all(row["largest"] <= 1 for row in info["operators"])
    kinds = [type(module) for module in integer.modules.values()]
    assert kinds.count(KeptKeys) == (follows_input or is_causal)
    assert (integer.model(**inputs) - mg.model(**inputs)).abs().max() < 0.1


@pytest.mark.parametrize("name", list(FOREIGN))
@pytest.mark.sampled(1)
def test_other_masks_are_refused_by_name(name):
    mg, inputs = graph(FOREIGN[name])
    node = mask_node(mg).name
    with pytest.raises(ConfigError, match=rf"scaled_dot_product_attention \(mask '{node}'"):
        passes.lower_to_integer_transform_pass(mg, {"batches": [inputs]})


def test_the_mask_of_a_module_is_that_of_attention():
    kept = torch.tensor([[1, 1, 0], [0, 1, 1]])
    expected = torch.tensor([[[1, 1, 0]], [[0, 1, 1]]]).bool()
    assert torch.equal(KeptKeys(3, 3, False)(kept)[:, 0], expected)
    both = KeptKeys(3, 3, True)(kept)
    assert both.shape == (2, 1, 3, 3) and both[0, 0].int().tolist() == [
        [1, 0, 0],
        [1, 1, 0],
        [1, 1, 0],
    ]
    assert KeptKeys(2, 3, True)().int().tolist() == [[1, 0, 0], [1, 1, 0]]


class WithWeights(nn.Module):
    """An `nn.MultiheadAttention` that returns its weights, which nothing reads."""

    def __init__(self, mask):
        super().__init__()
        self.mask, self.attention = mask, nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x, kept):
        padding = self.mask == "keys"
        mask = None
        if not padding:
            mask = torch.ones(KEYS, KEYS).triu(1).bool()
            mask = torch.zeros(KEYS, KEYS).masked_fill(mask, -torch.inf) if self.mask else mask
        key_padding = kept == 0 if padding else None
        return self.attention(x, x, x, key_padding_mask=key_padding, attn_mask=mask)[0]


@pytest.mark.parametrize("mask", ["keys", "numbers", ""])
@pytest.mark.sampled(1)
def test_attention_with_weights_is_lowered_where_its_mask_is(mask):
    torch.manual_seed(0)
    kept = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
    inputs = {"x": torch.randn(2, KEYS, 8), "kept": kept}
    rules = {"by": "type", "default": {"config": {"name": "integer", "width": 8, "frac_width": 5}}}
    mg = MaseGraph(WithWeights(mask).eval(), dummy_in=inputs)
    mg, _ = passes.quantize_transform_pass(mg, rules)
    integer, _ = passes.lower_to_integer_transform_pass(mg, {"batches": [inputs]})
    found, expected = integer.model(**inputs), mg.model(**inputs)
    assert (found - expected).abs().max() < 0.1
    operators = {mg.operator(node).name for node in mg.nodes}
    assert "masked_fill" in operators  # the quantized graph stays as it is


class Causal(nn.Module):
    """Attention that no query after it changes, written out where there is a mask to add."""

    def __init__(self, added=None):
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Linear(8, 24, bias=False)
        self.register_buffer("added", added)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.added is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.softmax(q @ k.mT + self.added, -1) @ v


def lowered(model, number_format):
    x = torch.randn(3, KEYS, 8, generator=torch.Generator().manual_seed(2))
    x[:, -1] *= 20  # in the block of the keys before it
    config = {"config": {"data_in": number_format, "weight": number_format}}
    written_out = ("softmax", "add", "matmul")
    names = ("linear", *(["scaled_dot_product_attention"] if model.added is None else written_out))
    mg = MaseGraph(model.eval(), dummy_in={"x": x})
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", **dict.fromkeys(names, config)})
    integer, info = passes.lower_to_integer_transform_pass(mg, {"batches": [{"x": x}]})
    # Weights of softmax may differ by its tables, a step of 8 bits in blocks of smaller ones.
    differences = {row["name"]: row["largest"] for row in info["operators"]}
    assert all(x == 0 for name, x in differences.items() if not name.endswith("softmax"))
    assert max(differences.values()) <= 4
    return integer.model, mg.model, x


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number_format", [Integer(8, 4), MXInt(8, block_size=KEYS)], ids=str)
def test_codes_of_visible_scores_are_those_of_the_quantized_model(number_format):
    """No exponent follows a hidden score, nor that of another key."""
    integer, quantized, x = lowered(Causal(), number_format)
    changed = torch.cat([x[:, :-1], torch.ones(3, 1, 8)], 1)
    for model in (integer, quantized):
        assert torch.equal(model(x)[:, :-1], model(changed)[:, :-1])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fill", [-torch.inf, torch.finfo(torch.float32).min, -1e4])
def test_masks_that_are_added_to_codes_are_refused(fill):
    """They would saturate to the lowest code, and be seen."""
    added = torch.zeros(KEYS, KEYS).masked_fill(torch.ones(KEYS, KEYS).triu(1).bool(), fill)
    with pytest.raises(
        ConfigError, match=r"add \(add of a mask\); rewrite manual attention .* with fuse_att"
    ):
        lowered(Causal(added), Integer(8, 4))
    lowered(Causal(torch.rand(KEYS, KEYS)), Integer(8, 4))
