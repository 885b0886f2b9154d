"""Vocabularies of another size: what operators have for each row follows the rows."""

import copy
import functools

import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM

from chop import MaseGraph, passes
from chop.formats import QuantSpec
from chop.nn.packed import PackedEmbedding, PackedLinear
from chop.nn.quantized import QuantEmbedding, QuantLinear
from tests.ir.decoders import TINY, llama

CHANNELS = {"name": "scale_integer", "width": 8, "granularity": "channel"}
LEARNED = QuantSpec.parse({"weight": CHANNELS, "gradient": "lsq"}, ["weight"], {}, "test")
RULE = {"by": "type", "linear": {"config": LEARNED}, "embedding": {"config": LEARNED}}
IDS = torch.randint(3, 40, (2, 7), generator=torch.Generator().manual_seed(0))
COUNTS = [64, 48, 40]  # more than the 50 there were, and fewer


def graph(is_tied):
    return made(is_tied).copy()


@functools.cache
def made(is_tied):
    model = llama(**TINY, use_cache=False, tie_word_embeddings=is_tied)
    mg = MaseGraph(model, hf_input_names=["input_ids"])
    return passes.quantize_transform_pass(mg, RULE)[0]


@torch.no_grad()
def logits(model):
    return model(input_ids=IDS).logits


def step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model.train()(input_ids=IDS).logits.square().mean().backward()
    optimizer.step()
    model.eval()


def resized(model, count):
    before = logits(model)
    model.resize_token_embeddings(count, mean_resizing=False)
    after, kept = logits(model), min(count, 50)
    assert after.shape[-1] == count
    torch.testing.assert_close(after[..., :kept], before[..., :kept])
    return model


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.long
def test_learned_scales_of_rows_follow_the_rows(is_tied, count):
    mg = graph(is_tied)
    mg.model.train()(input_ids=IDS)
    model = mg.to_module().eval()
    table, head = model.get_input_embeddings(), model.lm_head
    scales, kept = head.weight_scale.detach().clone(), min(count, 50)
    resized(model, count)
    head, table = model.lm_head, model.get_input_embeddings()
    assert type(head) is QuantLinear and type(table) is QuantEmbedding
    assert head.weight_scale.shape == table.weight_scale.shape == (count,)
    assert torch.equal(head.weight_scale[:kept], scales[:kept])
    assert head.weight_scale.requires_grad and (head.weight_scale > 0).all()
    assert (head.weight is table.weight) == is_tied and head.out_features == count
    twin = copy.deepcopy(model)
    step(model)
    step(twin)
    state = model.state_dict()
    assert all(torch.equal(x, state[name]) for name, x in twin.state_dict().items())
    other = resized(graph(is_tied).to_module().eval(), count)
    other.load_state_dict(state)
    assert torch.equal(logits(other), logits(model))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.sampled(1)
def test_scales_that_formats_bring_follow_packed_rows(is_tied, count, tmp_path):
    mg = graph(is_tied)
    mg.model.train()(input_ids=IDS)
    packed, _ = passes.pack_transform_pass(mg, {"silent": True})
    model = resized(packed.to_module().eval(), count)
    head, table = model.lm_head, model.get_input_embeddings()
    assert type(head) is PackedLinear and type(table) is PackedEmbedding
    assert len(head.spec.weight.scales) == len(table.spec.weight.scales) == count
    assert torch.equal(head.weight, table.weight) == is_tied
    model.save_pretrained(tmp_path)
    again = LlamaForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(again), logits(model))


@pytest.mark.parametrize("count", COUNTS[:2])
def test_scales_that_have_not_started_wait_for_all_rows(count):
    model = graph(is_tied=False).to_module().eval()
    model.resize_token_embeddings(count)
    assert "weight" in model.lm_head.waiting and len(model.lm_head.weight_scale) == count
    step(model)
    assert not model.lm_head.waiting and (model.lm_head.weight_scale > 0).all()


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("count", COUNTS[:2])
def test_masks_follow_the_rows(is_tied, count):
    settings = {"weight": {"sparsity": 0.5}, "include": ["lm_head", "model.embed_tokens"]}
    pruned, _ = passes.prune_transform_pass(graph(is_tied), settings)
    model = pruned.to_module().eval()
    logits(model)
    mask = model.lm_head.weight_mask.clone()
    resized(model, count)
    for layer in (model.lm_head, model.get_input_embeddings()):
        kept = min(count, 50)
        assert layer.weight_mask.shape == layer.weight_orig.shape == layer.weight.shape
        assert layer.weight_mask[kept:].all()
    assert torch.equal(model.lm_head.weight_mask[:kept], mask[:kept])
    step(model)
    assert (model.lm_head.weight[~model.lm_head.weight_mask] == 0).all()


def test_a_bias_and_another_dtype_follow_too():
    net = graph(is_tied=False).to_module().eval().to(torch.bfloat16)
    net.lm_head.bias = nn.Parameter(torch.randn(50, dtype=torch.bfloat16))
    resized(net, 64)
    assert net.lm_head.bias.shape == (64,) and net.lm_head.weight.dtype == torch.bfloat16
    assert net.lm_head.weight_scale.shape == (64,)
