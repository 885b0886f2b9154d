"""The layers of GPT-2, whose weights are (in, out), as linear layers."""

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.ir.ops import OPS
from chop.nn.lora import LoraLinear
from chop.nn.packed import PackedLinear
from chop.nn.transposed import TransposedLinear, stores_transposed

MXINT = {"config": {"name": "mxint"}}
IDS = torch.tensor([[5, 6, 7, 8], [9, 8, 7, 6]])
MASK = torch.ones_like(IDS)


@pytest.fixture(scope="module")
def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=64, n_layer=1, n_head=2, **ends)
    return GPT2LMHeadModel(config).eval()


@pytest.fixture(scope="module")
def mg(gpt2):
    return MaseGraph(gpt2)


@pytest.mark.long
def test_a_stand_in_is_the_layer_in_the_same_memory(gpt2, mg):
    theirs, ours = gpt2.transformer.h[0].mlp.c_fc, mg.modules["transformer.h.0.mlp.c_fc"]
    x = torch.randn(3, 64)
    assert type(ours) is TransposedLinear and type(theirs).__name__ == "Conv1D"
    assert torch.equal(ours(x), theirs(x)) and ours.weight.data_ptr() == theirs.weight.data_ptr()
    assert (ours.in_features, ours.out_features) == (64, 256)
    assert torch.equal(mg.model(IDS, MASK).logits, gpt2(IDS).logits)
    assert mg.operator(mg.node("transformer_h_0_mlp_c_fc")) is OPS["linear"]


def test_weights_that_are_tied_stay_so():
    from transformers.pytorch_utils import Conv1D

    net = nn.Sequential(Conv1D(8, 8), nn.ReLU(), Conv1D(8, 8))
    net[2].weight = net[0].weight
    made = MaseGraph(net, dummy_in={"input": torch.ones(2, 8)}).modules
    assert made["0"].weight is made["2"].weight


def test_every_linear_of_gpt2_is_quantized_packed_pruned_and_adapted(gpt2, mg, tmp_path):
    quantized, info = passes.quantize_transform_pass(mg, {"linear": MXINT, "embedding": MXINT})
    assert info == {"quantized": 7}
    packed, info = passes.pack_transform_pass(quantized)
    assert isinstance(packed.modules["transformer.h.0.attn.c_attn"], PackedLinear)
    assert info["packed"] == 7 and info["bytes"] < 1.05 * 8.25 / 32 * info["float_bytes"]
    head, table = packed.modules["lm_head"], packed.modules["transformer.wte"]
    assert head.weight_codes is table.weight_codes
    logits = quantized.model(IDS, MASK).logits
    assert torch.equal(packed.to_module()(IDS).logits, packed.model(IDS, MASK).logits)
    packed.export(tmp_path / "packed")
    again = MaseGraph.from_checkpoint(tmp_path / "packed")
    assert torch.equal(again.model(IDS, MASK).logits, packed.model(IDS, MASK).logits)
    unpacked, _ = passes.pack_transform_pass(again, {"unpack": True})
    assert torch.equal(unpacked.model(IDS, MASK).logits, logits)
    adapted, info = passes.insert_lora_adapter_transform_pass(mg, {"rank": 2})
    assert info["inserted"] == 5
    assert isinstance(adapted.modules["transformer.h.0.mlp.c_proj"], LoraLinear)
    pruned, info = passes.prune_transform_pass(
        mg, {"weight": {"sparsity": {"transformer.h.0.mlp.c_fc": 0.5}, "method": "l1-norm"}}
    )
    half = (pruned.to_module().transformer.h[0].mlp.c_fc.weight == 0).float().mean()
    assert half == pytest.approx(0.5, abs=0.01)


def test_state_dicts_are_those_of_the_original(gpt2, mg, tmp_path):
    from safetensors.torch import load_file

    small, _ = passes.quantize_transform_pass(mg, {"linear": MXINT})
    for module in (mg.model, small.model, small.to_module()):
        state, expected = module.state_dict(), gpt2.state_dict()
        assert state.keys() == expected.keys()
        assert all(torch.equal(x, expected[name]) for name, x in state.items())
    expected = small.model(IDS, MASK).logits
    small.export(tmp_path / "state", save_format="state_dict")
    gpt2.load_state_dict(load_file(tmp_path / "state.pt"))
    again = MaseGraph.from_checkpoint(tmp_path / "state")
    assert torch.equal(again.model(IDS, MASK).logits, expected)
    assert stores_transposed(again.modules["transformer.h.0.mlp.c_fc"])
    again.model.load_state_dict({k: 2 * x for k, x in gpt2.state_dict().items()})
    twice = again.modules["transformer.h.0.mlp.c_fc"].weight
    assert torch.equal(twice.t(), 2 * gpt2.transformer.h[0].mlp.c_fc.weight)


def test_peft_and_we_adapt_the_same_weight(gpt2, mg):
    adapted, _ = passes.insert_lora_adapter_transform_pass(mg, {"rank": 2})
    layer = adapted.modules["transformer.h.0.mlp.c_fc"]
    nn.init.ones_(layer.lora_B.weight)
    fused, _ = passes.fuse_lora_weights_transform_pass(adapted)
    expected = gpt2.transformer.h[0].mlp.c_fc.weight + layer.weight_update().t()
    key = "transformer.h.0.mlp.c_fc.weight"
    torch.testing.assert_close(fused.model.state_dict()[key], expected)


def test_a_table_tied_to_a_float_layer_stays_float_by_name(mg):
    small, _ = passes.quantize_transform_pass(mg, {"embedding": MXINT})
    _, info = passes.pack_transform_pass(small)
    reasons = {row["layer"]: row["why_float"] for row in info["rows"]}
    assert reasons["transformer.wte"] == "shares its weight with the Linear 'lm_head'"
    assert info["packed_share"] == pytest.approx(64 * 32 / sum(x["elements"] for x in info["rows"]))
