"""`model.dequantize()`: plain models of transformers of packed ones."""

import json

import pytest
import torch

from chop import ChopConfig
from chop.errors import ConfigError
from chop.formats import parse_format_string
from chop.nn.quantized import QuantizedOperator
from tests.ir.test_hf_folder import CAUSAL, IDS, MASK, decoder

transformers = pytest.importorskip("transformers")


def loaded(model, folder, **settings):
    model.save_pretrained(folder / "float")
    dtype = settings.pop("dtype", None)
    config = ChopConfig(settings.pop("format", "mxint4"), **settings)
    return CAUSAL.from_pretrained(folder / "float", quantization_config=config, dtype=dtype)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_those_of_the_codes(kind, dtype, tmp_path):
    original = decoder(kind)
    model = loaded(original, tmp_path, overrides={"re:.*mlp": "mxint8"}, dtype=dtype)
    layers = {p: m for p, m in model.named_modules() if isinstance(m, QuantizedOperator)}
    weights = {path: layer.weight.detach().clone() for path, layer in layers.items()}
    before = model(IDS, attention_mask=MASK).logits
    plain = model.dequantize()
    assert plain is model and not any(isinstance(m, QuantizedOperator) for m in model.modules())
    assert {type(m) for m in plain.modules()} == {type(m) for m in original.modules()}
    for path, weight in weights.items():
        own = plain.get_submodule(path).weight
        assert own.dtype == weight.dtype == dtype and own.requires_grad
        is_transposed = type(plain.get_submodule(path)).__name__ == "Conv1D"
        assert torch.equal(own, weight.t() if is_transposed else weight)
    rounded = parse_format_string("mxint4").round(original.get_input_embeddings().weight)
    assert torch.equal(plain.get_input_embeddings().weight, rounded.to(dtype))
    bound = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(plain(IDS, attention_mask=MASK).logits, before, atol=bound, rtol=0)
    assert plain.get_output_embeddings().weight is plain.get_input_embeddings().weight
    # As a folder it is one of transformers alone.
    plain.save_pretrained(tmp_path / "plain")
    assert "quantization_config" not in json.loads((tmp_path / "plain/config.json").read_text())
    again = CAUSAL.from_pretrained(tmp_path / "plain", dtype=dtype)
    assert plain.state_dict().keys() == original.state_dict().keys()
    for name, x in again.state_dict().items():
        assert torch.equal(x, plain.state_dict()[name]), name
    assert torch.equal(again(IDS).logits, plain(IDS).logits)


def test_inputs_are_rounded_no_more_and_a_dtype_is_taken(tmp_path):
    model = loaded(decoder("llama"), tmp_path, data_in="mxint8", skip="q_proj")
    rounded = model(IDS).logits
    plain = model.dequantize(dtype=torch.float16)
    assert plain.model.layers[0].mlp.up_proj.weight.dtype == torch.float16
    weights = loaded(decoder("llama"), tmp_path, skip="q_proj").dequantize()
    assert not torch.equal(weights(IDS).logits, rounded) and weights.train().training
    weights(IDS, labels=IDS).loss.backward()
    assert weights.model.layers[0].mlp.up_proj.weight.grad is not None


def test_a_folder_that_was_written_packed_gives_the_same(tmp_path):
    model = loaded(decoder("llama"), tmp_path)
    model.save_pretrained(tmp_path / "packed")
    again = CAUSAL.from_pretrained(tmp_path / "packed").dequantize()
    expected = model.dequantize().state_dict()
    assert all(torch.equal(x, expected[name]) for name, x in again.state_dict().items())


@pytest.mark.filterwarnings("ignore::chop.ir.unreached.UnreachedWarning")
def test_attributes_of_the_classes_of_a_model_stay(tmp_path):
    """Gemma's table scales what it looks up, and stays float; Qwen2 has biases."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 64}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    for config in (
        transformers.Gemma3TextConfig(head_dim=16, **sizes, **heads),
        transformers.Qwen2Config(**sizes, **heads),
    ):
        original = CAUSAL.from_config(config).eval()
        model = loaded(original, tmp_path / config.model_type)
        before = model(IDS).logits
        plain = model.dequantize()
        torch.testing.assert_close(plain(IDS).logits, before, atol=1e-5, rtol=0)
        assert plain.state_dict().keys() == original.state_dict().keys()


def test_experts_are_refused_and_stay(tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 64}
    config = transformers.MixtralConfig(
        num_attention_heads=2, num_key_value_heads=2, num_local_experts=2, **sizes
    )
    model = loaded(transformers.MixtralForCausalLM(config).eval(), tmp_path)
    before = model(IDS).logits
    with pytest.raises(ConfigError, match=r"dequantize: 'model.layers.0.mlp.experts'.*experts"):
        model.dequantize()
    assert torch.equal(model(IDS).logits, before)


def test_modules_are_named_with_their_own_reason(tmp_path):
    model = loaded(decoder("llama"), tmp_path)
    mlp = model.model.layers[0].mlp
    mlp.up_proj.register_forward_hook(lambda *_: None)
    mlp.down_proj = torch.nn.Sequential(mlp.down_proj)
    expected = r"^dequantize: 'model.layers.0.mlp.down_proj.0': in a module of another class;"
    with pytest.raises(ConfigError, match=expected):
        model.dequantize()
