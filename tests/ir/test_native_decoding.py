"""Native decoding: tokens of the model itself, its logits, and the model where it is needed."""

import copy
import pickle
import threading

import pytest
import torch
import transformers
from transformers import StaticCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from chop import decode_natively
from chop.base import notices
from chop.captured.huggingface.cache_names import cache_name
from chop.errors import ConfigError
from chop.formats import QuantSpec, parse_format_string
from chop.ir.huggingface import native_decoding
from chop.kernels.cpu import build
from chop.nn.packed import pack
from chop.nn.quantized import QuantLinear
from tests.subcases import subcases

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "vocab_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
    "eos_token_id": 511,
    "bos_token_id": 1,
}
FAMILIES = {
    "Llama": {"attention_bias": True},
    "Qwen3": {},
    "Granite": {"residual_multiplier": 0.5},
    "Phi": {"partial_rotary_factor": 0.5},  # LayerNorm, GELU and biases
    "Gemma": {},  # weights plus one
}
GREEDY = {"max_new_tokens": 8, "do_sample": False, "cache_implementation": "static"}


@pytest.fixture(autouse=True)
def _loops():
    if build.library().library is None:
        pytest.skip(build.library().detail)


def decoder(family="Llama", name="mxint:width=8", **more):
    """A decoder of a family, whose linear layers are packed."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES, **FAMILIES[family], **more)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    spec = QuantSpec(weight=parse_format_string(name))
    for path, layer in [*model.named_modules()]:
        if type(layer) is torch.nn.Linear:
            model.set_submodule(path, pack(QuantLinear.from_float(layer, spec)))
    return model


PROMPT = torch.tensor([[1, 7, 9, 300, 21, 7]])


def steps(model, tokens=3):
    """Logits of tokens after a prompt, in a static cache, with the cache."""
    cache = StaticCache(config=model.config, max_cache_len=16)
    given = {cache_name(model): cache, "use_cache": True}
    with torch.no_grad():
        model(input_ids=PROMPT, **given)
        ids = torch.arange(30, 30 + tokens).view(-1, 1, 1)
        logits = [model(input_ids=each, **given).logits for each in ids]
    return torch.cat(logits) if logits else None, cache


def is_native(model):
    return model.forward._steps is not None


@pytest.mark.parametrize(
    "family", [pytest.param(x, marks=[] if x == "Qwen3" else pytest.mark.long) for x in FAMILIES]
)
def test_logits_caches_and_texts_are_the_model_s(family):
    model = decoder(family)
    expected, old = steps(model)
    text = model.generate(PROMPT, **GREEDY)
    names = [*model.state_dict()]
    assert decode_natively(model) is model
    logits, new = steps(model)
    assert is_native(model)
    torch.testing.assert_close(logits, expected, atol=2e-5, rtol=2e-5)
    for a, b in zip(new.layers, old.layers, strict=True):
        torch.testing.assert_close(a.keys, b.keys, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(a.values, b.values, atol=1e-5, rtol=1e-5)
        assert a.cumulative_length == b.cumulative_length == 9
    model.forward._steps = model.forward._recorded_for = None
    assert torch.equal(model.generate(PROMPT, **GREEDY), text)
    assert is_native(model)
    assert [*model.state_dict()] == names


@pytest.mark.long
@subcases("name", ["mxint:width=4", "group_integer:width=4"])
def test_formats(name):
    model = decoder(name=name)
    expected, _ = steps(model)
    logits, _ = steps(decode_natively(model))
    assert is_native(model)
    torch.testing.assert_close(logits, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.filterwarnings("ignore:decode_natively")
def test_the_model_runs_other_calls():
    model, plain = decoder(), decoder()
    decode_natively(model)
    two = torch.cat((PROMPT, PROMPT.flip(1)))
    mask = torch.ones_like(two).index_fill(1, torch.tensor([0]), 0)
    calls = [
        {"inputs": two, "attention_mask": mask, **GREEDY},
        {"inputs": PROMPT, "attention_mask": mask[:1], **GREEDY},
        {"inputs": PROMPT, **GREEDY, "cache_implementation": "dynamic"},
        {"inputs": PROMPT, **GREEDY, "num_beams": 2},
    ]
    for call in calls:
        assert torch.equal(model.generate(**call), plain.generate(**call))
        assert not is_native(model)
    hidden = {"output_hidden_states": True, "return_dict_in_generate": True}
    states = model.generate(PROMPT, **GREEDY, **hidden).hidden_states
    assert len(states) == GREEDY["max_new_tokens"]
    assert len(states[-1]) == 3


def test_changed_weights_and_layers_are_recorded_again():
    model = decode_natively(decoder())
    before, _ = steps(model)
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    after, _ = steps(model)
    torch.testing.assert_close(after, 2 * before, atol=2e-5, rtol=2e-5)
    model.model.layers[1].mlp = copy.deepcopy(model.model.layers[0].mlp)
    expected, _ = steps(copy.deepcopy(model))
    plain = decoder()
    with torch.no_grad():
        plain.model.norm.weight.mul_(2)
    plain.model.layers[1].mlp = plain.model.layers[0].mlp
    torch.testing.assert_close(steps(model)[0], steps(plain)[0], atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(expected, steps(plain)[0], atol=2e-5, rtol=2e-5)


def test_hooks_and_adapters_run():
    model, seen = decode_natively(decoder()), []
    layer = model.model.layers[0].self_attn.q_proj
    handle = layer.register_forward_hook(lambda *_: seen.append(1))
    with pytest.warns(UserWarning, match="has hooks"):
        steps(model, tokens=2)
    assert len(seen) == 3
    assert not is_native(model)
    handle.remove()
    steps(model)
    assert is_native(model)

    class Adapter(torch.nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.scale = base, 1.0

        def forward(self, x):
            return self.base(x) * self.scale

    model.model.layers[0].self_attn.q_proj = Adapter(layer)
    with pytest.warns(UserWarning, match="Adapter is not a module of"):
        one, _ = steps(model)
    model.model.layers[0].self_attn.q_proj.scale = 3.0
    assert not torch.allclose(steps(model)[0], one)


@pytest.mark.long
def test_saved_and_copied_models_decode_by_themselves(tmp_path):
    model = decode_natively(decoder())
    expected, _ = steps(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.forward.model is other
        assert torch.equal(steps(other)[0], expected)
    torch.save(model.state_dict(), tmp_path / "state")
    again = decoder()
    again.load_state_dict(torch.load(tmp_path / "state"))
    assert torch.equal(steps(decode_natively(again))[0], expected)


@pytest.mark.long
def test_gradients_are_those_of_the_model():
    model, plain = decode_natively(decoder()), decoder()
    for one in (model, plain):
        rows = one.get_input_embeddings()(PROMPT[:, :1]).detach().requires_grad_()
        one(inputs_embeds=rows).logits.sum().backward()
        one.gradient = rows.grad
    assert torch.equal(model.gradient, plain.gradient)


def test_unsupported_operations_are_named():
    model = decode_natively(decoder(hidden_act="mish"))
    plain = decoder(hidden_act="mish")
    with pytest.warns(UserWarning, match="aten::mish is not supported"):
        logits, _ = steps(model)
    assert torch.equal(logits, steps(plain)[0])
    with pytest.raises(ConfigError, match="expected a decoder of transformers, got a Linear"):
        decode_natively(torch.nn.Linear(2, 2))


def test_writes_to_data_and_attributes_are_seen():
    model, plain = decode_natively(decoder("Gemma")), decoder("Gemma")
    steps(model)
    for one in (model, plain):
        one.model.norm.weight.data.add_(1)  # autograd does not count these
    torch.testing.assert_close(steps(model)[0], steps(plain)[0], atol=2e-5, rtol=2e-5)
    for one in (model, plain):
        one.model.norm.eps = 0.5
    torch.testing.assert_close(steps(model)[0], steps(plain)[0], atol=2e-5, rtol=2e-5)
    assert is_native(model)


@pytest.mark.long
def test_a_cache_that_was_reset_starts_another_text():
    model, plain = decode_natively(decoder()), decoder()
    cache = steps(model)[1]
    with torch.no_grad():
        model.model.layers[0].mlp = copy.deepcopy(model.model.layers[1].mlp)
        plain.model.layers[0].mlp = plain.model.layers[1].mlp
        given = {"input_ids": PROMPT[:, :1], "use_cache": True}
        cache.reset()
        logits = model(**given, **{cache_name(model): cache}).logits
        torch.testing.assert_close(logits, plain(**given).logits, atol=2e-5, rtol=2e-5)


def test_a_cache_beyond_its_ends_is_the_model_s():
    model = decode_natively(decoder())
    _, cache = steps(model)
    given = {"input_ids": PROMPT[:, :1], "use_cache": True, cache_name(model): cache}
    with torch.no_grad():
        for length in (-1, 16):
            for layer in cache.layers:
                layer.cumulative_length.fill_(length)
            with pytest.raises(IndexError, match="out of bounds|out of range"):
                model(**given)


MASKS = {
    "short": torch.ones(1, 4),
    "hidden token": torch.ones(1, 16).index_fill(1, torch.tensor([2]), 0),
    "hidden float": torch.zeros(1, 16),
    "future": torch.ones(1, 1, 1, 16, dtype=torch.bool),
    "bias": torch.full((1, 1, 1, 16), -1.0),
    "by kind": {"full_attention": torch.arange(16).view(1, 1, 1, 16) < 4},
}


def test_masks_that_hide_tokens_are_the_model_s():
    model, plain = decode_natively(decoder("Qwen3")), decoder("Qwen3")
    steps(model)

    def logits(one, mask):
        cache = steps(one, tokens=0)[1]
        given = {cache_name(one): cache, "use_cache": True, "attention_mask": mask}
        with torch.no_grad():
            return one(input_ids=PROMPT[:, :1], **given).logits

    for name, mask in MASKS.items():
        assert torch.equal(logits(model, mask), logits(plain, mask)), name


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:decode_natively")
@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rotations_that_depend_on_the_length_are_the_model_s(kind):
    factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8} if kind == "longrope" else {}
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0, **factors}
    rope["original_max_position_embeddings"] = 8
    more = {"rope_parameters": rope, "max_position_embeddings": 8}
    model, plain = decode_natively(decoder(**more)), decoder(**more)
    assert torch.equal(steps(model, tokens=6)[0], steps(plain, tokens=6)[0])
    assert not is_native(model)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:decode_natively")
def test_outputs_of_the_configuration_are_the_model_s():
    model = decode_natively(decoder())
    steps(model)
    model.config.output_hidden_states = True
    given = {cache_name(model): steps(model, tokens=0)[1], "use_cache": True}
    with torch.no_grad():
        assert len(model(input_ids=PROMPT[:, :1], **given).hidden_states) == 3


def test_outputs_besides_logits_are_the_model_s(monkeypatch):
    plain = transformers.LlamaForCausalLM.forward

    def with_loss(self, **given):
        return CausalLMOutputWithPast(torch.ones(()), **plain(self, **given))

    monkeypatch.setattr(transformers.LlamaForCausalLM, "forward", with_loss)
    model = decode_natively(decoder())
    given = {"use_cache": True, "input_ids": PROMPT[:, :1]}
    with torch.no_grad(), pytest.warns(UserWarning, match="asks for other outputs"):
        given[cache_name(model)] = StaticCache(config=model.config, max_cache_len=16)
        model(**given)
        assert model(**given).loss == 1


def test_a_forward_of_its_own_is_refused():
    model = decoder()
    model.forward = lambda **_: None
    with pytest.raises(ConfigError, match="has a forward of its own"):
        decode_natively(model)
    del model.forward
    assert decode_natively(decode_natively(model)) is model


def test_a_recording_leaves_the_model_to_other_threads(monkeypatch):
    """A prompt in another thread, while a token is recorded, has the model's own attention."""
    model = decode_natively(decoder())
    expected, found = decoder()(input_ids=PROMPT).logits, []
    attend = native_decoding._attend

    def slowly(*args, **kwargs):
        if not found:
            found.append(None)
            other = threading.Thread(target=lambda: found.append(model(input_ids=PROMPT).logits))
            other.start()
            other.join()
        return attend(*args, **kwargs)

    monkeypatch.setattr(native_decoding, "_attend", slowly)
    steps(model)
    assert is_native(model)
    assert torch.equal(found[1], expected)


@pytest.mark.long
def test_moved_weights_stay_where_they_were_recorded():
    model = decode_natively(decoder())
    expected, cache = steps(model, tokens=2)
    token = model.forward._steps
    cache.crop(-1)
    model.to(torch.float64)
    freed = [torch.full((n,), torch.nan) for n in (64, 96 * 64, 64 * 64) for _ in range(50)]
    with torch.no_grad():
        token._embed.to(torch.float32)
        torch.testing.assert_close(token.run(torch.tensor([[31]]), cache), expected[1:])
    assert freed


def test_a_cache_that_is_not_static_is_warned_of(monkeypatch):
    monkeypatch.setattr(notices, "_GIVEN", set())
    model = decode_natively(decoder())
    with pytest.warns(UserWarning, match="not static; pass cache_implementation='static'"):
        model.generate(PROMPT, max_new_tokens=2, do_sample=False)
