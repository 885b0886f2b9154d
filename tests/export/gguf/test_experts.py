"""Mixtures of experts in GGUF: stacked codes as ggml decodes them, the same logits, refusals."""

import pytest
import torch

from chop import MaseGraph, passes
from chop.actions.export.proof import compare_weights
from chop.errors import ConfigError
from chop.export.gguf.reader import read
from chop.export.gguf.target import TARGET, read_model
from chop.formats import parse_format_string
from tests.experts import mixture, text
from tests.export.decoders import rounded
from tests.export.gguf.test_llama_cpp import check_in_llama_cpp, in_llama_cpp

gguf = pytest.importorskip("gguf", reason="GGUF files are written by gguf: pip install gguf")

SIZES = {"hidden_size": 32, "moe_intermediate_size": 64, "max_position_embeddings": 64}
KINDS = {
    "Qwen3Moe": {"norm_topk_prob": True},
    "Qwen2Moe": {"shared_expert_intermediate_size": 96},
}
EXPERTS = "model.layers.0.mlp.experts"


def weight_in(fmt):
    return {"config": {"weight": parse_format_string(fmt)}}


def of(name, rules, **settings):
    model = mixture(name, **{**SIZES, **KINDS.get(name, {}), **settings})
    mg = MaseGraph(model, dummy_in={"input_ids": text()})
    rules = {kind: weight_in(fmt) for kind, fmt in rules.items()}
    return passes.quantize_transform_pass(mg, {"by": "type", **rules})[0]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("others", ["mxint:width=8", None])
@pytest.mark.long
def test_experts_keep_every_code_and_answer_in_transformers(name, others, tmp_path):
    fmt = "group_affine:width=4:group_size=32" if others else "mxint:width=4"
    rules = {"expert_linear": fmt} | ({"linear": others, "embedding": others} if others else {})
    mg, path = of(name, rules), tmp_path / "model.gguf"
    types = TARGET.write(mg, path)["tensors"]
    stacked = {f"blk.0.ffn_{part}_exps.weight" for part in ("gate", "up", "down")}
    assert {types[x] for x in stacked} == {"Q4_1" if others else "Q4_0"}
    found = read_model(path)
    with torch.no_grad():
        expected = rounded(mg)(text()).logits
        tolerance = 2e-3 if others else 0.0  # lowest values are rounded to float16
        torch.testing.assert_close(found(text()).logits, expected, atol=tolerance, rtol=0)
    packed, _ = passes.pack_transform_pass(mg, {"silent": True})
    proof = compare_weights(packed, TARGET.weights(path))
    assert proof.compared == proof.count and proof.difference <= tolerance
    if not others:
        assert (proof.equal, proof.count) == (2, 2)
    with pytest.raises(
        ConfigError, match="mixture of experts, which chop writes but does not read"
    ):
        read(path)
    layers = packed.modules[f"{EXPERTS}.gate_up"].weight.unflatten(0, (8, 2, -1))
    read_back = {x.name: x for x in gguf.GGUFReader(path).tensors}
    for half, part in enumerate(("gate", "up")):
        one = read_back[f"blk.0.ffn_{part}_exps.weight"]
        values = torch.from_numpy(gguf.quants.dequantize(one.data, one.tensor_type).copy())
        assert values.shape == (8, 64, 32)
        torch.testing.assert_close(values, layers[:, half], atol=tolerance, rtol=0)


@pytest.mark.long
def test_experts_that_stay_float_are_stacked_as_well(tmp_path):
    mg, path = of("Qwen3Moe", {"linear": "mxint:width=8"}), tmp_path / "model.gguf"
    types = TARGET.write(mg, path)["tensors"]
    assert types["blk.0.ffn_up_exps.weight"] == types["blk.0.ffn_down_exps.weight"] == "F32"
    with torch.no_grad():
        assert torch.equal(read_model(path)(text()).logits, rounded(mg)(text()).logits)


REFUSED = {
    "scales of tensors": ("Qwen3Moe", "nvfp4", {"hidden_size": 64}, "its tensor scale is shared"),
    "rows": ("Qwen3Moe", "mxint:width=4", {"moe_intermediate_size": 24}, r"down: its rows have 24"),
    "weights of experts": ("Qwen3Moe", "mxint:width=4", {"norm_topk_prob": False}, "norm_topk"),
    "Mixtral": ("Mixtral", "mxint:width=4", {}, "reads such a file as a model without experts"),
    "OLMoE": ("Olmoe", "mxint:width=4", {}, "does not support olmoe"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.sampled(1)
def test_what_engines_do_not_read_is_refused(case, tmp_path):
    name, fmt, settings, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        TARGET.write(of(name, {"expert_linear": fmt}, **settings), tmp_path / "model.gguf")
    assert not [*tmp_path.iterdir()]


@pytest.mark.long
@in_llama_cpp
@pytest.mark.parametrize("name", KINDS)
def test_llama_cpp_generates_our_tokens(name, tmp_path):
    ends = {"bos_token_id": 1, "eos_token_id": 2, "vocab_size": 288}
    rules = {"expert_linear": "mxint:width=4", "linear": "mxint:width=8"}
    sizes = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 64}
    check_in_llama_cpp(of(name, rules, **sizes, **ends), tmp_path / "model.gguf", name)
