"""Pruned decoders compute the original without its removed parts, and need no chop."""

import copy
import subprocess
import sys

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

from chop.errors import ConfigError
from chop.pruning.decoder.depth import block_influence, bypassed, renumbered
from chop.pruning.decoder.prune import RankedDecoder, prune_decoder

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES = {
    "llama": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": True, "mlp_bias": True}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "qwen3": (
        Qwen3ForCausalLM,
        Qwen3Config,
        {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 2},
    ),
    "gemma3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        {
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "smollm3": (SmolLM3ForCausalLM, SmolLM3Config, {"no_rope_layers": [1, 0, 1, 0]}),
}
HIDDEN = ("llama", "qwen2", "qwen3", "smollm3")
"""Families whose residual stream can be narrowed."""
IDS = torch.randint(3, 64, (3, 9), generator=torch.Generator().manual_seed(0))
MASK = torch.ones_like(IDS)
MASK[0, :3] = 0
TEXTS = [{"input_ids": IDS, "attention_mask": MASK}]
SMALL = {"num_hidden_layers": 3, "intermediate_size": 30, "num_key_value_heads": 1}


def decoder(name, **more):
    cls, config, settings = FAMILIES[name]
    torch.manual_seed(0)
    model = cls(config(**{**SIZES, **settings, **more})).eval().double()
    for parameter in model.parameters():
        # Importances differ clearly between units, and biases are not 0.
        parameter.data.normal_(std=0.2)
    return model


def logits(model, **more):
    with torch.no_grad():
        return model(**TEXTS[0], **more).logits[MASK.bool()]


def stayed(small, whole):
    """The rows of a whole matrix that are in a small one."""
    return (whole[:, None] == small[None]).all(-1).any(1)


def without_units(model, pruned):
    """The original with zeros where the next layers read removed units, and bypassed layers."""
    zeroed = copy.deepcopy(model)
    for index, number in enumerate(pruned.layers):
        layer, small = zeroed.model.layers[number], pruned.model.model.layers[index]
        kept = stayed(small.mlp.up_proj.weight, layer.mlp.up_proj.weight)
        layer.mlp.down_proj.weight.data[:, ~kept] = 0
        kept = stayed(small.self_attn.q_proj.weight, layer.self_attn.q_proj.weight)
        layer.self_attn.o_proj.weight.data[:, ~kept] = 0
        assert kept.sum() == 16
    return zeroed


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_pruned_decoder_is_the_original_without_the_removed_parts(name, tmp_path):
    model = decoder(name)
    before = copy.deepcopy(model.state_dict())
    pruned = prune_decoder(model, TEXTS, **SMALL)
    small = pruned.model
    gone = [number for number in range(4) if number not in pruned.layers]
    oracle = without_units(model, pruned)
    with bypassed(oracle.model.layers, gone):
        expected = logits(oracle)
    # Norms and the softmax of these classes round to float32 inside.
    torch.testing.assert_close(logits(small), expected, rtol=0, atol=1e-5)
    x = torch.randn(2, 32, dtype=torch.float64)
    for index, number in enumerate(pruned.layers):
        mlp, zeroed = small.model.layers[index].mlp, oracle.model.layers[number].mlp
        torch.testing.assert_close(mlp(x), zeroed(x), rtol=0, atol=1e-12)
    assert type(small) is type(model) and pruned.parameters[1] == small.num_parameters()
    config = small.config
    assert {key: getattr(config, key) for key in SMALL} == SMALL and config.num_attention_heads == 2
    for field in ("layer_types", "no_rope_layers"):
        if getattr(model.config, field, None) is not None:
            whole = getattr(model.config, field)
            assert getattr(config, field) == [whole[number] for number in pruned.layers]
    assert model.config.num_hidden_layers == 4 and model.config.intermediate_size == 48
    assert all(torch.equal(x, before[key]) for key, x in model.state_dict().items())

    small.save_pretrained(tmp_path)
    again = type(small).from_pretrained(tmp_path, dtype=torch.float64).eval()
    torch.testing.assert_close(logits(again), logits(small), rtol=0, atol=1e-12)
    tied = model.config.tie_word_embeddings
    assert (again.lm_head.weight is again.model.embed_tokens.weight) == tied
    assert (small.lm_head.weight is small.model.embed_tokens.weight) == tied
    greedy = {**TEXTS[0], "max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    tokens = small.generate(**greedy)
    assert torch.equal(again.generate(**greedy), tokens)
    assert torch.equal(small.generate(**greedy, use_cache=False), tokens)


def residual_importance(model, layers):
    """Mean magnitudes at the norms of some layers and at the last norm, as the paper defines."""
    watched, outputs = copy.deepcopy(model), []
    norms = [watched.model.norm]
    for number in layers:
        layer = watched.model.layers[number]
        norms += [layer.input_layernorm, layer.post_attention_layernorm]
    for norm in norms:
        norm.register_forward_hook(lambda module, args, output: outputs.append(output))
    logits(watched)
    return sum(x[MASK.bool()].abs().mean(0) for x in outputs)


def narrow_by_hand(model, channels):
    """The model of fewer residual channels, from slices of its weights by their names."""
    config = copy.deepcopy(model.config)
    config.hidden_size, config.head_dim = len(channels), 8
    made = type(model)(config).eval().double()
    state = {}
    for name, x in model.state_dict().items():
        if name.endswith(("o_proj.weight", "down_proj.weight", "down_proj.bias")):
            state[name] = x[channels]
        elif name.endswith(("q_norm.weight", "k_norm.weight", "_proj.bias")):
            state[name] = x
        else:  # norms, embedding, head, and layers that read the stream
            state[name] = x[..., channels]
    made.load_state_dict(state)
    return made


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", HIDDEN)
def test_residual_channels_stay_by_the_outputs_of_norms(name, tmp_path):
    model = decoder(name)
    if name in ("qwen2", "smollm3"):
        del model.config.head_dim  # as in their files
    channels = residual_importance(model, range(4)).topk(20).indices.sort().values
    small = prune_decoder(model, TEXTS, hidden_size=20).model
    torch.testing.assert_close(
        logits(small), logits(narrow_by_hand(model, channels)), rtol=0, atol=1e-12
    )
    assert (small.config.hidden_size, small.config.head_dim) == (20, 8)
    assert small.config.num_attention_heads == 4
    assert small.model.layers[0].self_attn.q_proj.weight.shape == (32, 20)
    small.save_pretrained(tmp_path)
    again = type(small).from_pretrained(tmp_path, dtype=torch.float64).eval()
    torch.testing.assert_close(logits(again), logits(small), rtol=0, atol=1e-12)
    tied = model.config.tie_word_embeddings
    assert (again.lm_head.weight is again.model.embed_tokens.weight) == tied
    assert (small.lm_head.weight is small.model.embed_tokens.weight) == tied


def test_all_sizes_together_are_their_parts_in_turn():
    model = decoder("qwen3")
    sizes = {**SMALL, "hidden_size": 20}
    pruned = prune_decoder(model, TEXTS, **sizes)
    config = pruned.model.config
    assert {key: getattr(config, key) for key in sizes} == sizes
    channels = residual_importance(model, pruned.layers).topk(20).indices.sort().values
    first = prune_decoder(narrow_by_hand(model, channels), TEXTS, num_hidden_layers=4).model
    for index, number in enumerate(pruned.layers):
        small, whole = pruned.model.model.layers[index], first.model.layers[number]
        rows = stayed(small.mlp.up_proj.weight, whole.mlp.up_proj.weight)
        assert rows.sum() == 30
        assert torch.equal(small.mlp.down_proj.weight, whole.mlp.down_proj.weight[:, rows])
        heads = stayed(small.self_attn.q_proj.weight, whole.self_attn.q_proj.weight)
        assert torch.equal(small.self_attn.o_proj.weight, whole.self_attn.o_proj.weight[:, heads])


def test_a_decoder_is_ranked_once_for_several_sizes():
    model = decoder("llama")
    ranked = RankedDecoder(model, TEXTS, {**SMALL, "hidden_size": 16})
    for sizes in (SMALL, {"hidden_size": 24}, {"num_hidden_layers": 3, "hidden_size": 16}):
        alone = prune_decoder(model, TEXTS, **sizes)
        again = ranked.prune(sizes)
        assert again.layers == alone.layers and again.parameters == alone.parameters
        assert torch.equal(logits(again.model), logits(alone.model))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", HIDDEN)
def test_parameters_are_counted_without_a_model(name):
    model = decoder(name)
    smallest = {**SMALL, "hidden_size": 16}
    ranked = RankedDecoder(model, TEXTS, smallest)
    shapes = ({}, SMALL, {"hidden_size": 24}, {"intermediate_size": 17}, smallest)
    counts = [ranked.count_parameters(shape) for shape in shapes]
    assert counts == [ranked.prune(shape).model.num_parameters() for shape in shapes]
    assert counts[0] == model.num_parameters()
    if name == "llama":
        with pytest.raises(ConfigError, match="does not accept these sizes"):
            ranked.check_sizes({"hidden_size": 17})


@pytest.mark.long
def test_the_folder_needs_no_chop(tmp_path):
    prune_decoder(decoder("smollm3"), TEXTS, **SMALL).model.save_pretrained(tmp_path)
    program = (
        "import sys; from transformers import AutoModelForCausalLM as A;"
        f"m = A.from_pretrained({str(tmp_path)!r});"
        "print(type(m).__name__, len(m.model.layers), 'chop' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["SmolLM3ForCausalLM", "3", "False"], done.stderr


@torch.no_grad()
def test_layers_leave_by_block_influence():
    model = decoder("llama")
    for number, scale in ((1, 1e-3), (2, 1e-2)):
        for path in ("self_attn.o_proj", "mlp.down_proj"):
            for parameter in model.model.layers[number].get_submodule(path).parameters():
                parameter.data *= scale
    influence = block_influence(model, TEXTS)
    states = model(**TEXTS[0], output_hidden_states=True).hidden_states
    for number in range(3):  # the last state is after the norm
        x, y = states[number][MASK.bool()], states[number + 1][MASK.bool()]
        cosine = torch.nn.functional.cosine_similarity(x, y, dim=-1)
        assert influence[number] == pytest.approx(float((1 - cosine).mean()), rel=1e-9)
    pruned = prune_decoder(model, TEXTS, num_hidden_layers=2)
    assert pruned.layers == (0, 3) and pruned.block_influence == tuple(influence)
    assert prune_decoder(model, TEXTS, num_hidden_layers=3).layers == (0, 2, 3)


def test_padding_does_not_count():
    model = decoder("qwen3")
    other = {**TEXTS[0], "input_ids": torch.where(MASK.bool(), IDS, 5)}
    assert block_influence(model, TEXTS) == block_influence(model, [other])


def test_channels_and_groups_stay_by_their_activations():
    model = decoder("llama", mlp_bias=False)
    watched, inputs = copy.deepcopy(model), {}
    for number, layer in enumerate(watched.model.layers):
        for path in ("mlp.down_proj", "self_attn.o_proj"):
            layer.get_submodule(path).register_forward_pre_hook(
                lambda module, args, key=(number, path): inputs.update({key: args[0]})
            )
    logits(watched)
    narrow = prune_decoder(model, TEXTS, intermediate_size=30).model
    few = prune_decoder(model, TEXTS, num_key_value_heads=1).model
    for number, layer in enumerate(model.model.layers):
        x = inputs[number, "mlp.down_proj"][MASK.bool()].abs().sum(0)
        small = narrow.model.layers[number]
        kept = stayed(small.mlp.gate_proj.weight, layer.mlp.gate_proj.weight)
        assert set(kept.nonzero()[:, 0].tolist()) == set(x.topk(30).indices.tolist())
        x = inputs[number, "self_attn.o_proj"][MASK.bool()].unflatten(-1, (2, 16))
        small = few.model.layers[number]
        best = int(x.norm(dim=-1).sum(0).argmax())
        kept = stayed(small.self_attn.v_proj.weight, layer.self_attn.v_proj.weight)
        assert kept.view(2, 8)[best].all() and kept.sum() == 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_dtype_and_generation_settings_stay(dtype):
    model = decoder("qwen2").to(dtype)
    model.generation_config.max_length = 77
    small = prune_decoder(model, TEXTS, **SMALL).model
    assert {x.dtype for x in small.parameters()} == {dtype}
    assert small.generation_config.max_length == 77
    assert all(x.requires_grad for x in small.parameters())


@pytest.mark.long
def test_a_pruned_model_can_be_pruned_again():
    once = prune_decoder(decoder("qwen3"), TEXTS, **SMALL).model
    twice = prune_decoder(once, TEXTS, num_hidden_layers=2, intermediate_size=16).model
    assert len(twice.model.layers) == 2 and twice.model.layers[1].mlp.up_proj.out_features == 16


def test_weights_that_were_decoded_are_not_called_quantized(tmp_path):
    model = decoder("qwen2")
    model.config.quantization_config = {"quant_method": "gguf"}
    for sizes in ({"num_hidden_layers": 3}, {"intermediate_size": 30}):
        small = prune_decoder(model, TEXTS, **sizes).model
        small.save_pretrained(tmp_path)
        assert "quantization_config" not in (tmp_path / "config.json").read_text()
    assert model.config.quantization_config


def test_eager_attention_stays():
    model, same = decoder("llama"), decoder("llama")
    model.set_attn_implementation("eager")
    # transformers' eager attention in float64 gives NaN for padding.
    texts = [{"input_ids": IDS}]
    small = prune_decoder(model, texts, num_key_value_heads=1).model
    assert small.config._attn_implementation == model.config._attn_implementation == "eager"
    other = prune_decoder(same, texts, num_key_value_heads=1).model
    torch.testing.assert_close(small(IDS).logits, other(IDS).logits, rtol=0, atol=1e-5)


def test_heads_of_attention_with_capped_scores_are_removed():
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(Gemma2Config(**SIZES, sliding_window=4)).eval()
    pruned = prune_decoder(model, [{"input_ids": IDS}], num_key_value_heads=1, intermediate_size=30)
    expected = without_units(model, pruned)(IDS).logits
    torch.testing.assert_close(pruned.model(IDS).logits, expected, rtol=0, atol=1e-5)


def test_state_dicts_are_renumbered_by_layer():
    state = {f"a.layers.{n}.w": torch.tensor(n) for n in range(12)} | {"a.norm": torch.tensor(9)}
    made = renumbered(state, "a.layers", [0, 10, 11])
    assert {name: int(x) for name, x in made.items()} == {
        "a.layers.0.w": 0,
        "a.layers.1.w": 10,
        "a.layers.2.w": 11,
        "a.norm": 9,
    }


def packed():
    from chop import MaseGraph, passes

    mg = MaseGraph(decoder("llama").float())
    rule = {"by": "type", "linear": {"config": {"weight": {"name": "mxint", "width": 8}}}}
    mg, _ = passes.quantize_transform_pass(mg, rule)
    return passes.pack_transform_pass(mg, {"silent": True})[0].to_module()


REFUSED = {
    "no size": (lambda: decoder("llama"), {}, "pass at least one of"),
    "too many layers": (lambda: decoder("llama"), {"num_hidden_layers": 5}, "from 1 to 4"),
    "no layer": (lambda: decoder("llama"), {"num_hidden_layers": 0}, "from 1 to 4"),
    "no number": (lambda: decoder("llama"), {"intermediate_size": 0.5}, "got 0.5"),
    "packed": (packed, SMALL, "is quantized; prune the float model"),
    "experts": (
        lambda: MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=2)),
        SMALL,
        "is a mixture of experts",
    ),
    "gate and up in one": (
        lambda: Phi3ForCausalLM(Phi3Config(**{k: v for k, v in SIZES.items() if k != "head_dim"})),
        {"intermediate_size": 30},
        "gate and up in one layer",
    ),
    "scaled embedding": (lambda: decoder("gemma3"), {"hidden_size": 20}, "in another way too"),
    "norm with a mean": (
        lambda: Starcoder2ForCausalLM(Starcoder2Config(**SIZES)),
        {"hidden_size": 24},
        "is no RMSNorm",
    ),
    "heads from the hidden size": (
        lambda: StableLmForCausalLM(StableLmConfig(**SIZES)),
        {"hidden_size": 24},
        "the sizes of heads depend on it",
    ),
    "heads that do not divide": (
        lambda: decoder("llama"),
        {"hidden_size": 21},
        "is not a multiple of the number of attention heads",
    ),
    "norm over all heads": (
        lambda: Olmo2ForCausalLM(
            Olmo2Config(**{k: v for k, v in SIZES.items() if k != "head_dim"})
        ),
        {"num_key_value_heads": 1},
        "is a norm over all heads",
    ),
    "no groups": (
        lambda: GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=64)),
        {"num_key_value_heads": 1},
        "num_key_value_heads of this model is None",
    ),
    "no model of transformers": (lambda: torch.nn.Linear(2, 2), SMALL, "got a Linear"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_one_sentence(case):
    make, sizes, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message) as error:
        prune_decoder(make(), TEXTS, **sizes)
    assert str(error.value).startswith("prune_decoder") and str(error.value).endswith(".")


def test_texts_are_needed():
    with pytest.raises(ConfigError, match="at least one batch"):
        prune_decoder(decoder("llama"), [], num_hidden_layers=2)
    for wrong in ([IDS], {"input_ids": IDS}):
        with pytest.raises(ConfigError, match="a list of mappings with 'input_ids', such as .*got"):
            prune_decoder(decoder("llama"), wrong, num_hidden_layers=2)


def test_texts_may_have_no_mask():
    texts = {"input_ids": IDS, "labels": IDS}
    without = prune_decoder(decoder("qwen2"), [texts], **SMALL)
    masked = prune_decoder(decoder("qwen2"), [{**texts, "attention_mask": IDS > 0}], **SMALL)
    assert without.block_influence == masked.block_influence
    assert torch.equal(without.model(IDS).logits, masked.model(IDS).logits)
