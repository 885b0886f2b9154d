"""KV caches in few bits, beside a float cache whose tokens are rounded by hand."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
import transformers
from transformers.cache_utils import DynamicLayer

import chop
from chop.errors import ConfigError
from chop.formats import Float, parse_format, parse_format_string
from chop.ir.huggingface.quantized_cache import QuantizedCache
from chop.ir.huggingface.token_store import StoreRule, TokenStore, get_block
from chop.kernels.hadamard import hadamard_reference

SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
ATTENTION_OF_DEEPSEEK = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 24,
    "first_k_dense_replace": 2,
    "n_routed_experts": 8,
    "moe_intermediate_size": 16,
}
DECODERS = {
    "llama": {},
    "qwen2": {},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 64},
    "mistral": {"sliding_window": 40},
    "gemma3_text": {"head_dim": 20, "sliding_window": 40, "num_hidden_layers": 6},
    "deepseek_v3": ATTENTION_OF_DEEPSEEK,
    "bloom": {"vocab_size": 64, "hidden_size": 64, "n_layer": 2, "n_head": 4},
}
IDS = torch.randint(1, 64, (2, 120), generator=torch.Generator().manual_seed(0))
CALLS = (70, 1, 1, 30, *[1] * 18)
"""Tokens of each call: a prompt, tokens, a second prompt, tokens."""
FORMATS = (
    ("group_affine:width=4", "group_integer:width=4"),
    ("mxint:width=8", "nvfp4"),
    ("scale_integer:width=4:granularity=row", "ternary"),
)
REGISTRY = (
    *("binary", "binary:bipolar=false", "block_fp:width=8:exponent_width=8", "block_log:width=4"),
    "block_minifloat:width=8:exponent_width=4:exponent_bias_width=8",
    *("group_affine:width=3:group_size=48", "group_integer:width=3:group_size=5", "8.4", "5.2"),
    *("log:width=8", "minifloat_denorm:width=8:exponent_width=4", "mxfp:width=6:exponent_width=3"),
    *("minifloat_ieee:width=8:exponent_width=4", "mxint:width=5:block_size=[2,16]", "nvfp4"),
    *("mxint:width=4:block_dim=0", "scale_integer:width=8:scales=[0.5]", "scale_integer:width=6"),
    *("scale_integer:width=4:granularity=channel", "scale_integer:width=4:granularity=group"),
    *("ternary", "ternary:scaling_factor=true", "binary_residual"),
)


def decoder(kind, dtype=torch.float32, **settings):
    torch.manual_seed(0)
    sizes = DECODERS[kind] if kind in ("gpt2", "bloom") else {**SIZES, **DECODERS[kind]}
    config = transformers.AutoConfig.for_model(kind, **{**sizes, **settings})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    # Heads of small weights attend to all tokens alike, whatever the keys are.
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and "embed" not in name:
            parameter.data *= 4
    return model


def get_rule(text, per, **settings):
    number_format = parse_format_string(text)
    return StoreRule(number_format, per, block=get_block(number_format, per), **settings)


def pack_blocks(tokens, rule):
    """Blocks of one text each, as they are encoded, in order."""
    for text in tokens:
        for block in text.split(rule.block, -2):
            yield block.transpose(-1, -2) if rule.per == "channel" else block


def rounded(tokens, rule):
    """Whole blocks of tokens (B, H, T, D), rounded by the format's reference."""
    exact = [rule.number_format.round(x.float().contiguous()) for x in pack_blocks(tokens, rule)]
    turned = [x.transpose(-1, -2) if rule.per == "channel" else x for x in exact]
    count = tokens.size(-2) // rule.block
    texts = [torch.cat(turned[i : i + count], -2) for i in range(0, len(turned), count)]
    return torch.stack(texts).to(tokens.dtype)


class RoundedLayer(DynamicLayer):
    """All tokens as floats; those between the first and the newest are rounded."""

    def __init__(self, rules, window):
        super().__init__()
        self.rules, self.window = rules, window
        self.done = [rule.sink_length for rule in rules]
        self.is_sliding = window is not None
        self.sliding_window = window

    def update(self, key_states, value_states, *args, **kwargs):
        found = super().update(key_states, value_states)
        both = [self.keys.clone(), self.values.clone()]
        for i, rule in enumerate(self.rules):
            coded = max(both[i].size(-2) - rule.sink_length - rule.residual_length, 0)
            end = rule.sink_length + coded // rule.block * rule.block
            if end > self.done[i] and not rule.number_format.is_identity:
                part = both[i][:, :, self.done[i] : end]
                both[i][:, :, self.done[i] : end] = rounded(part, rule)
                self.done[i] = end
        self.keys, self.values = both
        shown = key_states.shape[-2] + (self.window or 2**30) - 1
        return tuple(x[:, :, -shown:] for x in found)

    def get_mask_sizes(self, query_length):
        past = self.get_seq_length()
        kept = past if self.window is None else min(past, self.window - 1)
        return kept + query_length, past - kept


def by_hand(cache):
    """A float cache that gives what `cache` has to give."""
    found = transformers.DynamicCache()
    found.layer_class_to_replicate = None
    found.layers = [RoundedLayer(x.rules, x.sliding_window) for x in cache.layers]
    return found


@torch.inference_mode()
def logits(model, cache, calls=CALLS, masks=False):
    found, start, settings = [], 0, {}
    for count in calls:
        ids = IDS[:, start : start + count]
        start += count
        if masks:
            settings = {"attention_mask": torch.ones_like(IDS[:, :start])}
        found.append(model(input_ids=ids, cache=cache, use_cache=True, **settings).logits)
    return torch.cat(found, 1)


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("formats", FORMATS, ids=" ".join)
@pytest.mark.sampled(2)
def test_logits_are_those_of_tokens_that_are_rounded_by_hand(kind, formats):
    model = decoder(kind)
    cache = QuantizedCache(model, *formats, residual_length=16)
    expected = logits(model, by_hand(cache))
    found = logits(model, cache)
    assert torch.equal(found, expected)
    exact = logits(model, transformers.DynamicCache(config=model.config))
    assert torch.equal(found[:, : CALLS[0]], exact[:, : CALLS[0]])  # a prompt reads itself as it is
    assert not torch.equal(found, exact)


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_a_format_that_changes_nothing_gives_the_logits_of_a_float_cache(kind):
    model = decoder(kind)
    exact = logits(model, transformers.DynamicCache(config=model.config))
    for keys, values in (("float", None), (Float(), {"name": "float"}), (None, None)):
        cache = QuantizedCache(model, keys, values, residual_length=0)
        assert torch.equal(logits(model, cache), exact)
        assert cache.size_bytes == cache.float_bytes
    halves = QuantizedCache(model, "float", "mxint4", residual_length=0)
    assert not torch.equal(logits(model, halves), exact)
    assert [store.codes is None for store in halves.layers[0].stores] == [True, False]


@pytest.mark.parametrize("text", REGISTRY)
@pytest.mark.parametrize("per", ["channel", "token"])
@pytest.mark.sampled(24)
def test_every_format_stores_what_it_rounds_in_as_many_bits_as_it_says(text, per):
    rule = get_rule(text, per, residual_length=3, sink_length=2)
    tokens = torch.randn(2, 3, 2 * rule.block + 22, 10, generator=torch.Generator().manual_seed(1))
    store, coded = TokenStore(rule), 0
    for part in tokens.split([1, 8, tokens.size(2) - 42, 1, 32], 2):
        store.append(part)
    coded = (tokens.size(2) - 5) // rule.block * rule.block
    assert coded and store.codes.blocks == coded // rule.block
    found = store.tokens()
    sinks, found = found.split([2, found.size(2) - 2], 2)
    assert torch.equal(sinks, tokens[:, :, :2])
    tokens = tokens[:, :, 2:]
    assert torch.equal(found[:, :, coded:], tokens[:, :, coded:])
    assert torch.equal(found[:, :, :coded], rounded(tokens[:, :, :coded], rule))
    block = rule.shape(3, 10)
    of_block = rule.number_format.bits(block) * 3 * 10 * rule.block / 8
    expected = round(2 * store.codes.blocks * of_block)
    assert expected <= store.codes.size_bytes <= expected + 2 * 2 * store.codes.blocks
    as_they_came = sinks.numel() + tokens[:, :, coded:].numel()
    assert store.size_bytes == store.codes.size_bytes + as_they_came * 4


@pytest.mark.parametrize("size", [64, 80, 5])
@pytest.mark.parametrize("per", ["channel", "token"])
def test_rotated_keys_are_rounded_between_two_transforms(per, size):
    rule = get_rule("group_integer:width=4", per, residual_length=0, is_rotated=True)
    tokens = torch.randn(2, 3, 64, size, generator=torch.Generator().manual_seed(1))
    tokens[..., 1] += 30  # a channel that stands out
    store = TokenStore(rule)
    store.append(tokens)
    block = size & -size
    expected = hadamard_reference(rounded(hadamard_reference(tokens, block), rule), block)
    torch.testing.assert_close(store.tokens(), expected, rtol=1e-4, atol=1e-4)
    plain = TokenStore(replace(rule, is_rotated=False))
    plain.append(tokens)
    errors = [(x.tokens() - tokens)[..., 2:].norm() for x in (store, plain)]
    if per == "token" and size == 64:  # others of its group are no longer lost
        assert errors[0] < 0.8 * errors[1]


def test_rotated_keys_through_a_model():
    model = decoder("llama")
    exact = logits(model, transformers.DynamicCache(config=model.config))
    settings = {"residual_length": 0, "rotate_keys": True}
    cache = QuantizedCache(model, "mxint8", "float", **settings)
    assert [rule.is_rotated for rule in cache.layers[0].rules] == [True, False]
    torch.testing.assert_close(logits(model, cache), exact, rtol=0, atol=0.1)
    plain = QuantizedCache(model, "mxint8", "float", residual_length=0)
    assert not torch.equal(logits(model, plain), logits(model, cache))
    floats = QuantizedCache(model, "float", **settings)
    assert torch.equal(logits(model, floats), exact)


def test_memory_is_as_computed():
    model = decoder("llama", hidden_size=256)  # heads of 64
    cache = QuantizedCache(model, "group_affine:width=4", "mxint4")
    logits(model, cache, (120,))
    assert cache.size_bytes == cache.float_bytes == 2 * 2 * 2 * 2 * 120 * 64 * 4
    cache.update(*[torch.randn(2, 2, 200, 64)] * 2, 0)
    # 320 tokens: 132 stay and a block of 64 keys or 32 values has not been filled beyond them.
    keys, values = (320 - 132) // 64 * 64, (320 - 132) // 32 * 32
    numbers = 2 * 2 * 64
    expected = numbers * (keys * 4.375 + values * 4.25 + (640 - keys - values) * 32) / 8
    assert sum(store.size_bytes for store in cache.layers[0].stores) == expected
    assert cache.layers[0].stores[0].float_bytes == numbers * 320 * 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_halves_are_rounded_as_float32_numbers(dtype):
    model = decoder("llama", dtype)
    cache = QuantizedCache(model, "group_integer:width=3", residual_length=0)
    found = logits(model, cache)
    assert found.dtype == dtype and found.isfinite().all()
    if dtype != torch.float64:
        assert torch.equal(found, logits(model, by_hand(cache)))
    assert cache.layers[0].keys.dtype == dtype


def test_the_largest_halves_stay_finite():
    rule = get_rule("mxint4", "token", residual_length=0)
    store = TokenStore(rule)
    store.append(torch.full((1, 1, 32, 32), 65504.0, dtype=torch.float16))
    assert store.codes is not None and store.tokens().isfinite().all()


def test_other_numbers_of_texts_need_a_reset():
    model = decoder("llama")
    cache = QuantizedCache(model, "float")
    model(IDS[:1, :6], cache=cache)
    with pytest.raises(ConfigError, match=r"holds 1 texts, got 2\. Call reset"):
        model(IDS[:1, :6].repeat(2, 1), cache=cache)


def test_a_second_text_needs_a_reset():
    model = decoder("llama")
    cache = QuantizedCache(model, "float")
    greedy = {"max_new_tokens": 4, "do_sample": False, "cache": cache}
    first = model.generate(IDS[:1, :6], **greedy)
    with pytest.warns(UserWarning, match="holds 9 tokens of an earlier generate"):
        again = model.generate(first, **greedy)
    assert torch.equal(again, model.generate(IDS[:1, :6], max_new_tokens=8, do_sample=False))
    with (
        pytest.warns(UserWarning, match="must begin with these tokens"),
        pytest.raises(ConfigError, match="holds 13 tokens .* Call reset"),
    ):
        model.generate(IDS[:1, 6:9], **greedy)
    cache.reset()
    assert torch.equal(model.generate(IDS[:1, :6], **greedy), first)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
def test_a_text_that_is_read_again_from_the_start_is_refused(name):
    model = decoder(name)
    for length in (1, 70):
        cache = QuantizedCache(model, "mxint4", residual_length=0, sink_length=0)
        with pytest.raises(ConfigError, match="read again from the start, .* use_cache=True"):
            model.generate(IDS[:, :length], cache=cache, max_new_tokens=3, use_cache=False)


@pytest.mark.parametrize("name", ["llama", "bloom"])
def test_the_same_tokens_may_come_again_later_in_a_text(name):
    model = decoder(name)
    cache = QuantizedCache(model, "float")
    ids = torch.cat([IDS[:1, :9], IDS[:1, :3], IDS[:1, :20]], dim=1)
    with torch.no_grad():
        model(ids[:, :9], cache=cache)
        model(ids[:, 9:12], cache=cache)
        found = model(ids[:, 12:], cache=cache).logits[:, -1]
        torch.testing.assert_close(found, model(ids).logits[:, -1], rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_generation_with_padding_beams_and_drafts_is_that_of_rounded_tokens():
    model = decoder("llama")
    ids = IDS[:, :50].clone()
    ids[0, :9] = 0
    settings = {"attention_mask": (ids > 0).long(), "max_new_tokens": 30, "do_sample": False}
    for more in ({}, {"num_beams": 3}, {"num_beams": 2, "num_return_sequences": 2}):
        cache = QuantizedCache(model, "group_integer:width=2", residual_length=4)
        expected = model.generate(ids, cache=by_hand(cache), **settings, **more)
        assert torch.equal(model.generate(ids, cache=cache, **settings, **more), expected)
    prompt = ids[1:].repeat(1, 2)
    greedy = {"max_new_tokens": 30, "do_sample": False}
    for kind in ("llama", "mistral"):
        model = decoder(kind)
        drafted = QuantizedCache(model, "float", residual_length=4)
        found = model.generate(prompt, cache=drafted, prompt_lookup_num_tokens=3, **greedy)
        assert torch.equal(found, model.generate(prompt, **greedy))
        coarse = QuantizedCache(model, "mxint4", residual_length=4)
        model.generate(prompt, cache=coarse, prompt_lookup_num_tokens=3, **greedy)
        assert coarse.layers[0].stores[0].codes is not None


def test_texts_are_stored_each_by_itself():
    for text in ("mxint4", "nvfp4", "ternary"):
        cache = QuantizedCache(decoder("llama"), text, residual_length=8)
        states = torch.randn(3, 2, 75, 16)
        cache.update(states, states, 0)
        alone = QuantizedCache(decoder("llama"), text, residual_length=8)
        alone.update(states[1:2], states[1:2], 0)
        whole = cache.layers[0].keys
        assert torch.equal(alone.layers[0].keys, whole[1:2])
        cache.reorder_cache(torch.tensor([2, 2, 1]))
        assert torch.equal(cache.layers[0].keys, whole[[2, 2, 1]])
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([5, 0]))
        assert torch.equal(cache.layers[0].keys, whole[[1, 2]])


def test_cropped_tokens_are_forgotten():
    model = decoder("llama")
    cache = QuantizedCache(model, "mxint8", residual_length=8)
    logits(model, cache, (80,))
    before = cache.layers[0].keys
    kept = copy.deepcopy(cache)
    for removed, left in ((0, 80), (3, 77), (10, 67), (20, 47), (44, 3), (1, 2), (2, 0)):
        cache.crop(-removed)
        assert cache.get_seq_length() == left
        assert torch.equal(cache.layers[0].keys, before[:, :, :left])
    assert torch.equal(kept.layers[0].keys, before)  # a copy is a copy
    assert torch.equal(logits(model, cache), logits(model, by_hand(cache)))
    kept.crop(-100)
    assert kept.get_seq_length() == 0
    with pytest.raises(ConfigError, match="0 or less"):
        kept.crop(3)


def test_a_sliding_window_forgets_and_is_cropped_where_it_records():
    model = decoder("mistral")
    cache = QuantizedCache(model, "mxint8", residual_length=0)
    logits(model, cache, (120,))
    assert cache.get_max_length() == 40 and cache.is_sliding == [True, True]
    assert cache.layers[0].stores[0].length == 39 + (120 - 39) % 32
    with pytest.raises(ConfigError, match="activate_past_recording"):
        cache.crop(-20)
    cache = QuantizedCache(model, "float")
    exact = transformers.DynamicCache(config=model.config)
    for each in (cache, exact):
        each.activate_past_recording()
        logits(model, each, (100,))
        each.crop(-5)
    assert torch.equal(logits(model, cache, (20,)), logits(model, exact, (20,)))


def test_first_tokens_stay_as_they_came_until_a_sliding_window_leaves_them():
    model = decoder("gemma3_text")  # layers with a window, and one without
    cache = QuantizedCache(model, "mxint4", residual_length=0, sink_length=5)
    exact = transformers.DynamicCache(config=model.config)
    first, others = torch.randn(2, 2, 2, 2, 20), torch.randn(2, 2, 2, 90, 20)
    for given in (first, others):
        for each in (cache, exact):
            for layer in range(6):
                each.update(*given, layer)
    kept = [store for layer in cache.layers for store in layer.stores if store.sinks.numel()]
    assert len(kept) == 2  # keys and values of the last layer
    whole = torch.cat((first, others), -2)
    for store, states in zip(kept, whole, strict=True):
        assert torch.equal(store.tokens()[:, :, :5], states[:, :, :5])
        assert not torch.equal(store.tokens()[:, :, 5:6], states[:, :, 5:6])
    grown = kept[0].tokens()
    cache.layers[5].crop(-88)  # and the sinks grow again
    assert torch.equal(kept[0].tokens(), whole[0][:, :, :4])
    cache.update(*others, 5)
    assert torch.equal(kept[0].tokens()[:, :, 4:5], others[0][:, :, :1])
    assert kept[0].length == grown.size(2) + 2


def test_a_cache_is_reset_moved_and_pickled():
    model = decoder("llama")
    cache = QuantizedCache(model, "mxint4", residual_length=8)
    expected = logits(model, cache)
    again = pickle.loads(pickle.dumps(cache))
    assert torch.equal(again.layers[1].keys, cache.layers[1].keys)
    cache.layers[0].offload()
    cache.layers[0].prefetch()
    assert torch.equal(again.layers[0].values, cache.layers[0].values)
    cache.reset()
    assert cache.get_seq_length() == cache.size_bytes == 0 and cache.layers[0].keys is None
    assert torch.equal(logits(model, cache), expected)


def test_no_texts_and_gradients():
    model = decoder("llama")
    cache = QuantizedCache(model, "mxint4", residual_length=0)
    empty = torch.zeros(0, 2, 70, 16)
    assert cache.update(empty, empty, 0)[0].shape == (0, 2, 70, 16)
    cache = QuantizedCache(model, "mxint4", residual_length=0)
    for part in IDS.split(40, 1):
        model(part, cache=cache).logits.sum().backward()
    assert model.lm_head.weight.grad.isfinite().all()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_graphs_take_it(kind):
    model = decoder(kind)
    mg = chop.MaseGraph(model)
    cache = lambda: chop.QuantizedCache(mg, "group_integer:width=3", residual_length=16)  # noqa: E731
    filled = cache()
    found = logits(mg.model, filled, masks=True)
    torch.testing.assert_close(found, logits(model, by_hand(filled)), rtol=1e-4, atol=1e-4)
    assert filled.layers[1].stores[0].codes is not None
    ids = {"input_ids": IDS[:, :60], "attention_mask": torch.ones_like(IDS[:, :60])}
    greedy = {"max_new_tokens": 10, "do_sample": False}
    tokens = model.generate(**ids, **greedy, cache=cache())
    assert torch.equal(mg.model.generate(**ids, **greedy, cache=cache()), tokens)
    assert torch.equal(mg.to_module().generate(**ids, **greedy, cache=cache()), tokens)


def test_a_cache_is_of_decoders():
    with pytest.raises(ConfigError, match="got bert with is_decoder=False"):
        QuantizedCache(transformers.BertConfig())
    for config in (transformers.BertConfig(is_decoder=True), transformers.GPTNeoXConfig()):
        assert len(QuantizedCache(config).layers) == config.num_hidden_layers


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keys": "mxint9x"}, "unknown number format 'mxint9x'.*mxint"),
        ({"keys": {"name": "group_intger", "width": 4}}, "did you mean 'group_integer'"),
        ({"values": ""}, "unknown number format ''"),
        ({"keys": "int4"}, r"format 'int4': did you mean group_integer:width=4\?"),
        ({"values": "8.auto"}, "specify its fields as numbers"),
        ({"keys": "scale_integer:width=4:scales=[1.0,2.0]"}, "a cache grows"),
        ({"keys_per": "chanel"}, "did you mean 'channel'"),
        ({"residual_length": -1}, "expected 0 or more, got -1"),
        ({"residual_length": True}, "residual_length: expected int, got True"),
        ({"sink_length": -2}, "sink_length: expected 0 or more, got -2"),
        ({"keys": 4}, "keys: expected str or .* got 4"),
    ],
)
def test_settings_that_cannot_be(arguments, message):
    with pytest.raises(ConfigError, match=message):
        QuantizedCache(transformers.LlamaConfig(**SIZES), **arguments)


def test_models_whose_state_is_another():
    for config, message in (
        (
            transformers.MambaConfig(num_hidden_layers=1),
            r"mamba has other layers: LinearAttentionLayer \(1 of them\)",
        ),
        (transformers.T5Config(), "t5, which has an encoder"),
        (torch.nn.Linear(2, 2), "got Linear"),
    ):
        with pytest.raises(ConfigError, match=message):
            QuantizedCache(config)
    cache = QuantizedCache(transformers.LlamaConfig(**SIZES))
    with pytest.raises(ConfigError, match="a model of 2 layers, got keys of layer 2"):
        cache.update(torch.ones(1, 2, 3, 16), torch.ones(1, 2, 3, 16), 2)
    assert parse_format(None) == Float()
