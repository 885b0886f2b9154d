"""Padding in training: starts of learned scales and ranges are those of visible tokens."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

from chop import MaseGraph, passes
from chop.captured.padding import hidden

LENGTHS, SIZE, WIDTH = (7, 4, 2), 7, 16
LSQ = {"config": {"data_in": {"name": "scale_integer", "width": 8}, "gradient": "lsq"}}
AUTO = {"config": {"data_in": {"name": "integer", "width": 8, "frac_width": "auto"}}}
CLIP = {"config": {**AUTO["config"], "data_out": AUTO["config"]["data_in"], "gradient": "clip"}}
SETTINGS = {"lsq": LSQ, "auto": AUTO, "clip": CLIP}
OPERATORS = {"linear", "layer_norm", "gelu", "silu", "add", "softmax", "matmul", "relu"}
OPERATORS |= {"scaled_dot_product_attention"}
SMALL = {
    "hidden_size": WIDTH,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 50,
    "num_hidden_layers": 1,
}


class Encoder(nn.Module):
    """torch's encoder, over tokens that `key_padding_mask` hides."""

    def __init__(self):
        super().__init__()
        self.ids = nn.Embedding(50, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, ids, key_padding_mask):
        return self.layers(self.ids(ids), src_key_padding_mask=key_padding_mask)


def bert(attention="eager"):
    return BertModel(
        BertConfig(
            **SMALL,
            attn_implementation=attention,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def llama():
    settings = {"num_key_value_heads": 1, "use_cache": False, "attn_implementation": "eager"}
    return LlamaModel(LlamaConfig(**SMALL, **settings))


MODELS = {"bert": bert, "llama": llama, "encoder": Encoder}


def batch_of(name, padding):
    """Tokens with padding of that content; the last of a row are hidden."""
    ids = torch.randint(1, 50, (3, SIZE), generator=torch.Generator().manual_seed(0))
    kept = torch.arange(SIZE) < torch.tensor(LENGTHS)[:, None]
    other = torch.randint(1, 50, (3, SIZE), generator=torch.Generator().manual_seed(padding))
    ids = torch.where(kept, ids, other)
    if name == "encoder":
        return {"ids": ids, "key_padding_mask": ~kept}, kept
    return {"input_ids": ids, "attention_mask": kept.long()}, kept


_graphs = {}


def quantized(name, settings):
    if name not in _graphs:
        torch.manual_seed(0)
        example, _ = batch_of(name, 1)
        _graphs[name] = MaseGraph(MODELS[name](), dummy_in=example)
    mg = _graphs[name]
    found = {mg.operator(node).name for node in mg.nodes} & OPERATORS
    rules = {"by": "type", **dict.fromkeys(found, SETTINGS[settings])}
    return passes.quantize_transform_pass(mg, rules)[0]


def learned(model):
    ends = ("_scale", "_range")
    return {n: x.clone() for n, x in model.state_dict().items() if n.endswith(ends)}


def answer(found):
    return getattr(found, "last_hidden_state", found)


def after_training(model, name, padding, call=None, steps=2):
    """Trains on other batches; returns what was learned, and the answers to tokens that count."""
    for step in range(steps):
        batch, kept = batch_of(name, padding + step)
        y = answer(model(**batch) if call is None else call(model, batch))
        y[kept].square().sum().backward()
    return learned(model), y[kept].detach()


def assert_equal_for_all_padding(mg, name, **how):
    found = [after_training(copy.deepcopy(mg.model), name, padding, **how) for padding in (1, 9)]
    (state, y), (again, other) = found
    assert state and all(torch.equal(x, again[key]) for key, x in state.items())
    assert torch.equal(y, other)
    return state


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sampled(1)
def test_training_learns_of_visible_tokens(name, settings):
    mg = quantized(name, settings)
    mg.model.train()
    before = learned(mg.model)
    after = assert_equal_for_all_padding(mg, name)
    assert any(not torch.equal(x, before[key]) for key, x in after.items())


def test_what_is_learned_is_that_of_the_tokens_alone():
    """One row without padding, and the same row beside hidden tokens."""
    mg = quantized("bert", "auto")
    mg.model.train()
    ids = batch_of("bert", 1)[0]["input_ids"][:1]
    alone, padded = copy.deepcopy(mg.model), copy.deepcopy(mg.model)
    alone(input_ids=ids, attention_mask=torch.ones_like(ids))
    wide = torch.cat([ids, torch.full_like(ids, 3)], 1)
    padded(input_ids=wide, attention_mask=(torch.arange(wide.shape[1]) < SIZE)[None].long())
    names = [n for n in learned(alone) if "embeddings" not in n]  # sums of positions see all rows
    found, expected = learned(padded), learned(alone)
    assert names
    for name in names:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=0)


@pytest.mark.long
def test_positions_eval_with_gradients_and_checkpoints():
    mg = quantized("encoder", "lsq")
    mg.model.train()
    expected = assert_equal_for_all_padding(mg, "encoder")
    ways = {
        "positions": lambda model, batch: model(*batch.values()),
        "checkpoint": lambda model, batch: checkpoint(model, *batch.values(), use_reentrant=False),
    }
    for call in ways.values():
        state = assert_equal_for_all_padding(mg, "encoder", call=call)
        assert all(torch.equal(x, expected[key]) for key, x in state.items())
    mg.model.eval()
    assert_equal_for_all_padding(mg, "encoder")


def test_a_model_may_write_into_its_inputs():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x, attention_mask):
            x.mul_(2)
            return self.layer(x) * attention_mask[..., None]

    x, mask = torch.randn(2, 4, WIDTH), torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mg = MaseGraph(Writes(), dummy_in={"x": x.clone(), "attention_mask": mask})
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": AUTO})
    mg.model.train()
    given = x.clone()
    mg.model(x=given, attention_mask=mask)
    assert torch.equal(given, 2 * x)
    largest = (2 * x)[mask.bool()].abs().max()
    (found,) = learned(mg.model).values()
    assert found[0] == largest


@pytest.mark.parametrize("name", ["auto", "lsq"])
def test_nothing_is_followed_where_nothing_is_learned_or_hidden(name, monkeypatch):
    mg = quantized("encoder", name)
    seen = []
    follow = hidden.HiddenElements._follow
    monkeypatch.setattr(
        hidden.HiddenElements, "_follow", lambda *args: (seen.append(1), follow(*args))
    )
    batch, _ = batch_of("encoder", 1)
    shown = {**batch, "key_padding_mask": torch.zeros_like(batch["key_padding_mask"])}
    mg.model.train()
    mg.model(**shown)
    assert not seen
    mg.model(**batch)
    assert bool(seen) == (name == "auto")  # scales have started
    seen.clear()
    mg.model.eval()
    with torch.no_grad():
        mg.model(**batch)
    assert not seen
