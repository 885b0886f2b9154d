"""Encoders with decoders as folders: their embeddings, which share a weight, are packed."""

import pytest
import torch
import transformers
from safetensors.torch import load_file

from chop import MaseGraph, passes
from chop.models import load_model

T5 = {"d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
BART = {
    **{f"{part}_layers": 1 for part in ("encoder", "decoder")},
    **{f"{part}_attention_heads": 2 for part in ("encoder", "decoder")},
    **{f"{part}_ffn_dim": 32 for part in ("encoder", "decoder")},
}
SIZES = {"vocab_size": 48, "d_model": 32}
MODELS = {
    "t5": lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(**SIZES, **T5)),
    "t5 1.1": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(**SIZES, **T5, tie_word_embeddings=False)
    ),
    "t5 encoder": lambda: transformers.T5EncoderModel(transformers.T5Config(**SIZES, **T5)),
    "bart": lambda: transformers.BartForConditionalGeneration(
        transformers.BartConfig(**SIZES, **BART, max_position_embeddings=16, scale_embedding=True)
    ),
}
MXINT = {"config": {"weight": {"name": "mxint", "width": 8}}}


def result(model, name):
    ids = torch.arange(3, 11)[None]
    both = {} if name == "t5 encoder" else {"decoder_input_ids": ids.flip(1)}
    found = model(input_ids=ids, attention_mask=torch.ones_like(ids), **both)
    return (found["last_hidden_state"] if name == "t5 encoder" else found["logits"]).detach()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.long
def test_packed_embeddings_are_written_and_read(name, tmp_path):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    mg, _ = passes.quantize_transform_pass(
        MaseGraph(model), {"by": "type", "linear": MXINT, "embedding": MXINT}
    )
    packed, _ = passes.pack_transform_pass(mg, {"silent": True})
    expected = result(packed.to_module().eval(), name)
    assert not torch.equal(expected, result(model, name))
    torch.testing.assert_close(result(packed.model, name), expected, rtol=1e-5, atol=1e-5)
    packed.save_pretrained(tmp_path / "own")
    again = load_model(tmp_path / "own")
    assert torch.equal(result(again, name), expected)
    again.save_pretrained(tmp_path / "twice")
    assert torch.equal(result(load_model(tmp_path / "twice"), name), expected)
    if name != "bart":  # whose class multiplies what it looks up
        tables = [x for x in load_file(tmp_path / "own" / "model.safetensors") if "shared" in x]
        assert sorted(tables) == ["shared.weight_codes", "shared.weight_scales"]


@pytest.mark.parametrize("name", ["t5", "bart"])
@pytest.mark.long
def test_folders_of_other_tools_have_floats_for_them(name, tmp_path):
    torch.manual_seed(0)
    mg, _ = passes.quantize_transform_pass(
        MaseGraph(MODELS[name]().eval()), {"by": "type", "linear": MXINT, "embedding": MXINT}
    )
    packed, _ = passes.pack_transform_pass(mg, {"silent": True})
    settings = {"to": "compressed-tensors", "path": str(tmp_path / "folder")}
    passes.export_interface_pass(packed, settings)
    expected = result(packed.to_module().eval(), name)
    found = result(load_model(tmp_path / "folder"), name)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
